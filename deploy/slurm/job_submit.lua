-- job_submit.lua for a site that has none: loads wattle.lua beside this file.
-- slurmctld does not start with a broken job_submit.lua, so nothing but the loading is here, and a broken or
-- missing wattle.lua leaves every job to Slurm.

local folder = debug.getinfo(1, "S").source:match("^@(.*/)[^/]*$") or "/etc/slurm/"
local loaded, wattle = pcall(dofile, folder .. "wattle.lua")
if not loaded or type(wattle) ~= "table" then
   slurm.log_error("wattle: %s; jobs are left to Slurm", tostring(wattle))
   wattle = nil
end

function slurm_job_submit(desc, parts, uid)
   if wattle then return wattle.submit(desc, parts, uid) end
   return slurm.SUCCESS
end

function slurm_job_modify(desc, record, parts, uid)
   if wattle then return wattle.modify(desc, record, parts, uid) end
   return slurm.SUCCESS
end

return slurm.SUCCESS

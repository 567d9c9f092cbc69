-- Wattle's intake in slurmctld: GPU jobs which Wattle can place are held and get a tag; every other job is
-- left to Slurm, unchanged.
--
-- Loaded by job_submit.lua with pcall(dofile, ...); returns a table with the functions `submit` and `modify`,
-- which have the arguments of slurm_job_submit and slurm_job_modify and return their result.
-- The settings are in wattle_slurm.conf beside this file, or in the file that the global WATTLE_SLURM_CONF names.
-- They are read when slurmctld loads job_submit.lua: at its start, and after `touch job_submit.lua`.
-- Lua 5.1 and later.

local intake = {}

-- Seconds that a job which its owner releases waits for Wattle; then Slurm starts it.
local GRACE_S = 30

-- Settings -------------------------------------------------------------------------------------------------

-- Words separated by commas or blanks, as a set.
local function set_of(text)
   local set = {}
   for word in text:gmatch("[^,%s]+") do set[word] = true end
   return set
end

local function uids_of(text)
   local set = {}
   for word in text:gmatch("[^,%s]+") do
      local uid = tonumber(word)
      if not uid then error("operators: `" .. word .. "` is not a numeric user id", 0) end
      set[uid] = true
   end
   return set
end

local function positive(text)
   local number = tonumber(text)
   if not number or number < 1 or number % 1 ~= 0 then error("`" .. text .. "` is not a positive number", 0) end
   return number
end

local LEVELS = { advise = false, caps = false, start = true, exact = true, share = true }

local function holds_jobs(text)
   if LEVELS[text] == nil then
      error("level: `" .. text .. "` is not one of advise, caps, start, exact, share", 0)
   end
   return LEVELS[text]
end

local function same(text) return text end

local READERS = {
   level = holds_jobs, partitions = set_of, qos = set_of, operators = uids_of, heartbeat = same,
   patience_s = positive, gpus_per_node = positive, gpu_types = set_of,
   -- Read by task_prolog.sh and epilog_bell.
   bell = same, devices = same, progress = same, checkpoints = same,
}

local function read_settings(path)
   local file = assert(io.open(path))
   local settings = { gpu_types = {}, patience_s = 60 }
   for line in file:lines() do
      line = line:gsub("#.*", "")
      local key, value = line:match("^%s*([%w_]+)%s*=%s*(.-)%s*$")
      if key then
         local read = READERS[key]
         if not read then error(path .. ": unknown key `" .. key .. "`", 0) end
         settings[key] = read(value)
      elseif line:match("%S") then
         error(path .. ": no key and value: " .. line, 0)
      end
   end
   file:close()
   for _, key in ipairs({ "level", "partitions", "operators", "heartbeat", "gpus_per_node" }) do
      if settings[key] == nil then error(path .. ": the key `" .. key .. "` is missing", 0) end
   end
   return settings
end

-- Terms: the owner's declaration, `--comment="wattle: key=value ..."` --------------------------------------

local function in_days(year, month, day, hour, minute, second)
   local at = { year = tonumber(year), month = tonumber(month), day = tonumber(day), hour = tonumber(hour),
      min = tonumber(minute), sec = tonumber(second) }
   local time = os.time(at)
   local back = time and os.date("*t", time)
   -- os.time accepts the 31st of June and returns the 1st of July.
   if back and back.month == tonumber(month) and tonumber(hour) < 24 and tonumber(minute) < 60
      and tonumber(second) < 60 then
      return time
   end
end

local function is_id(value) return #value <= 64 and value:match("^[%w_-]+$") ~= nil end

-- Each reader returns a true value if the given one is accepted. The first text is the accepted form.
local TERMS = {
   gpus = { "N or N..M, GPUs of the whole job, with 1 <= N <= M, as gpus=1..4", function(value)
      local low, high = value:match("^(%d%d?%d?%d?)%.%.(%d%d?%d?%d?)$")
      low = tonumber(low or value:match("^%d%d?%d?%d?$"))
      high = tonumber(high) or low
      return low and low >= 1 and low <= high and { low = low, high = high }
   end },
   signal = { "TERM, USR1, USR2, INT, HUP or CONT", function(value)
      local name = value:gsub("^SIG", "")
      return ({ TERM = 1, USR1 = 1, USR2 = 1, INT = 1, HUP = 1, CONT = 1 })[name] and name
   end },
   exit = { "an exit code from 1 to 255, which is also in Slurm's RequeueExitHold, as exit=85", function(value)
      local code = tonumber(value:match("^%d%d?%d?$"))
      return code and code >= 1 and code <= 255
   end },
   workload = { "1 to 64 letters, digits, - and _, as workload=resnet50", is_id },
   project = { "1 to 64 letters, digits, - and _, as project=vision", is_id },
   deadline = { "a time to come, as 2026-12-01T08:00, in local time or with Z or +01:00 at its end", function(value)
      local year, month, day, hour, minute, rest = value:match("^(%d%d%d%d)-(%d%d)-(%d%d)T(%d%d):(%d%d)(.*)$")
      if not year then return false end
      local second, zone = rest:match("^:(%d%d)(.*)$")
      zone = zone or rest
      local time = in_days(year, month, day, hour, minute, second or "0")
      local known = zone == "" or zone == "Z" or zone:match("^[+-]%d%d:%d%d$")
      -- A zone shifts the time by up to 14 h; the exact check is Wattle's.
      return time and known and time > os.time() - (zone == "" and 0 or 14 * 3600)
   end },
   slack = { "a number with s, m, h or d, as slack=4h", function(value)
      local number = tonumber(value:match("^(%d+%.?%d*)[smhd]$"))
      return number and number > 0 and #value <= 12
   end },
   ["max-slowdown"] = { "a percentage from 0% to 100%, as max-slowdown=5%", function(value)
      local number = tonumber(value:match("^(%d+%.?%d*)%%$"))
      return number and number <= 100
   end },
   flexibility = { "a percentage from 0% to 100%, as flexibility=25%", function(value)
      local number = tonumber(value:match("^(%d+%.?%d*)%%$"))
      return number and number <= 100
   end },
   ["event-pause"] = { "the word event-pause, without a value" },
   ["event-resize"] = { "the word event-resize, without a value" },
   share = { "the word share, without a value" },
   exclusive = { "the word exclusive, without a value" },
}

local function known_keys()
   local keys = {}
   for key in pairs(TERMS) do keys[#keys + 1] = key end
   table.sort(keys)
   return table.concat(keys, ", ")
end

-- The terms in a comment by key, or nil and the error. A comment without terms has none.
local function read_terms(comment)
   local terms = {}
   comment = comment or ""
   local text = comment:match("^%s*wattle:(.*)$")
   if not text then
      if comment:find("wattle:", 1, true) or comment:lower():match("^%s*wattle%W") then
         return nil, "the comment `" .. comment .. "` must begin with `wattle:`, as \"wattle: gpus=1..4 signal=TERM\""
      end
      return terms
   end
   for word in text:gmatch("%S+") do
      local key, value = word:match("^([^=]*)=(.*)$")
      key = key or word
      local term = TERMS[key]
      if not term then
         return nil, "unknown comment key `" .. key .. "` in `" .. word .. "`; the keys are " .. known_keys()
      end
      if terms[key] ~= nil then return nil, "comment key `" .. key .. "` is given twice" end
      local form, read = term[1], term[2]
      local accepted
      if read and value then accepted = read(value) else accepted = not read and not value end
      if not accepted then
         return nil, "comment key `" .. key .. "`: invalid value `" .. (value or "") .. "`; expected " .. form
      end
      terms[key] = accepted
   end
   if terms.share and terms.exclusive then return nil, "comment keys `share` and `exclusive` exclude each other" end
   for _, key in ipairs({ "event-pause", "event-resize" }) do
      if terms[key] and not terms.flexibility then return nil, "comment key `" .. key .. "` needs `flexibility`" end
   end
   if terms.exit and not terms.signal then
      return nil, "comment key `exit` needs `signal`, the signal that requests the checkpoint"
   end
   return terms
end

-- The request ----------------------------------------------------------------------------------------------

-- A number that was given, or nil. Slurm's values for "not given" are its largest of 16, 32 and 64 bits.
local function given(number)
   if type(number) ~= "number" or number <= 0 then return nil end
   if number == 65534 or number == 65535 or number >= 4294967290 then return nil end
   return number
end

-- GPUs in a TRES text such as `gres:gpu:v100:2` or `gres/gpu:2`: their count and kind, `foreign` a name that only
-- Wattle assigns, and `odd` an item that is not understood or differs in kind.
local function gpus_in(text)
   local found = { count = 0 }
   for item in (text or ""):gmatch("[^,]+") do
      local name, rest = item:gsub("^gres[:/]", ""):match("^([%w_]+)(.*)$")
      if name == "shard" or name == "guest" then
         found.foreign = name
      elseif name == "gpu" then
         local kind = rest:match("^:(%a[%w_.-]*)")
         local count = rest:gsub("^:%a[%w_.-]*", "")
         local number = count == "" and 1 or tonumber(count:match("^[:=](%d+)$"))
         if kind and kind:match("^g%d+$") then found.foreign = found.foreign or kind end
         if not number or (found.count > 0 and found.kind ~= kind) then found.odd = item end
         found.kind, found.count = kind, found.count + (number or 0)
      end
   end
   return found
end

local TRES = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

local function request_of(desc)
   local request = {}
   for _, field in ipairs(TRES) do
      local found = gpus_in(desc[field])
      request[field] = found.count
      request.foreign = request.foreign or found.foreign
      request.odd = request.odd or found.odd
      if found.count > 0 then
         if request.counted and request.kind ~= found.kind then request.odd = desc[field] end
         request.kind, request.counted = found.kind, true
      end
   end
   return request
end

-- Nodes and GPUs of each node, or nil and the reason why Wattle can't place such a request.
local function shape_of(desc, request, part, settings)
   local low, high = given(desc.min_nodes), given(desc.max_nodes)
   if high and high ~= low then return nil, "a range of nodes" end
   local nodes = low
   local tasks, tasks_per_node = given(desc.num_tasks), given(desc.ntasks_per_node)
   if not nodes and tasks and tasks_per_node then nodes = math.ceil(tasks / tasks_per_node) end
   local total = request.tres_per_job > 0 and request.tres_per_job or nil
   if request.tres_per_task > 0 then
      if total and not tasks then return nil, "GPUs of the job and of each task, without a number of tasks" end
      local of_tasks = request.tres_per_task * (tasks or nodes or 1)
      if total and total ~= of_tasks then return nil, "GPUs of the job and of its tasks differ" end
      total = of_tasks
   end
   local each = request.tres_per_node > 0 and request.tres_per_node or nil
   if not nodes and total then
      nodes = math.ceil(total / (each or math.min(total, settings.gpus_per_node)))
   end
   nodes = nodes or 1
   if total then
      if total % nodes ~= 0 then return nil, "another number of GPUs on each node" end
      if each and each ~= total / nodes then return nil, "GPUs of the job and of its nodes differ" end
      each = total / nodes
   end
   if each > settings.gpus_per_node then return nil, "more GPUs than a node has" end
   -- Without a number of nodes Slurm may take several for the CPUs.
   local cpus, all_cpus, all_nodes = given(desc.min_cpus), part and part.total_cpus, part and part.total_nodes
   if not low and cpus and all_cpus and (all_nodes or 0) > 0 and cpus > nodes * all_cpus / all_nodes then
      return nil, "more CPUs than its nodes have"
   end
   return { nodes = nodes, each = each }
end

-- `gres:gpu:4` in a count of CPUs or of memory per GPU: 4; nil if there is none, false if it is not understood.
local function per_gpu(text)
   if not text or text == "" then return nil end
   return tonumber(text:match("^gres[:/]gpu:(%d+)$") or text:match("^gpu:(%d+)$")) or false
end

-- Why a job is left to Slurm, or nil.
local function unplaceable(desc, part, settings)
   if (desc.script or "") == "" then return "interactive" end
   if desc.het_job_offset and desc.het_job_offset < 4294967290 then return "heterogeneous" end
   if desc.cron_job then return "a crontab job" end
   if (desc.reservation or "") ~= "" then return "a reservation" end
   if desc.shared == 0 or desc.shared == 2 or desc.shared == 3 then return "whole nodes" end
   if part and part.max_share == 0 then return "whole nodes (partition)" end
   if desc.min_mem_per_node == 0 then return "all memory of its nodes" end
   if (desc.tres_per_socket or "") ~= "" then return "GPUs per socket" end
   if (desc.req_nodes or "") ~= "" or (desc.exc_nodes or "") ~= "" then return "named nodes" end
   if given(desc.contiguous) == 1 or given(desc.req_switch) or given(desc.reboot) == 1 then
      return "contiguous nodes, switches or a reboot"
   end
   if (desc.array_inx or ""):find("%", 1, true) then return "an array with a limit of running tasks" end
   if (desc.burst_buffer or "") ~= "" then return "a burst buffer" end
   if given(desc.ntasks_per_tres) then return "tasks per GPU" end
   local cpus, memory = per_gpu(desc.cpus_per_tres), per_gpu(desc.mem_per_tres)
   if cpus == false or memory == false then return "CPUs or memory of another resource than GPUs" end
   if cpus and given(desc.num_tasks) then return "CPUs per GPU with a number of tasks" end
   local features = desc.features or ""
   if features ~= "" and not settings.gpu_types[features] then return "node features" end
   if settings.qos and not settings.qos[desc.qos or desc.default_qos or ""] then return "a QOS that is not managed" end
end

-- Submission -----------------------------------------------------------------------------------------------

local settings, problem
local seed_at = 0
local stale_noted = 0

-- Whether Wattle runs: its heartbeat file contains the current time, in seconds.
local function is_alive()
   local file = io.open(settings.heartbeat)
   local at = file and tonumber(file:read("*l") or "")
   if file then file:close() end
   local now = os.time()
   if at and math.abs(now - at) <= settings.patience_s then return true end
   if now - stale_noted >= 60 then
      stale_noted = now
      slurm.log_info("wattle: the heartbeat %s is %s; GPU jobs are left to Slurm", settings.heartbeat,
         at and string.format("%d s off", now - at) or "missing or empty")
   end
   return false
end

-- 13 hexadecimal digits: time and a random number. Job ids are used again after a crash of slurmctld.
local function new_tag()
   local now = os.time()
   if seed_at == 0 then
      local file, seed = io.open("/dev/urandom", "rb"), now
      if file then
         for byte in (file:read(3) or ""):gmatch(".") do seed = (seed * 256 + byte:byte()) % 2147483647 end
         file:close()
      end
      math.randomseed(seed)
      seed_at = now
   end
   return string.format("%08x%05x", now, math.random(0, 0xfffff))
end

local function refuse(message)
   slurm.log_user("%s", "wattle: " .. message)
   return slurm.ERROR
end

-- The partitions of a job, and whether Wattle manages the only one.
local function partition_of(desc, parts)
   local name = desc.partition
   if not name or name == "" then
      for each, part in pairs(parts) do
         if part.flag_default == 1 then name = each end
      end
   end
   local managed, count = false, 0
   for one in (name or ""):gmatch("[^,]+") do
      managed, count = managed or settings.partitions[one] or false, count + 1
   end
   return managed, count == 1 and name or nil
end

local function submit(desc, parts, uid)
   if not settings.level or settings.operators[uid] then return slurm.SUCCESS end
   -- A tag comes from here only.
   if (desc.admin_comment or ""):match("^%s*wattle:") then desc.admin_comment = "" end
   local managed, partition = partition_of(desc, parts)
   local request = request_of(desc)
   -- A guest has the device files of GPUs that other jobs hold.
   if request.foreign == "guest" or (managed and request.foreign) then
      return refuse("`" .. request.foreign .. "` is assigned by Wattle; request GPUs by number, as --gres=gpu:2")
   end
   if not managed or not (request.counted or request.odd) or not is_alive() then return slurm.SUCCESS end

   local terms, wrong = read_terms(desc.comment)
   if not terms then return refuse(wrong) end
   if terms.signal and desc.requeue == 0 then
      return refuse("comment key `signal` permits requeues, and --no-requeue forbids them; remove one of them")
   end

   if terms.share and (desc.mem_per_tres or "") ~= "" then
      return refuse("comment key `share` needs memory that does not depend on GPUs: --mem instead of --mem-per-gpu")
   end

   local part = partition and parts[partition]
   local why = not partition and "several partitions" or request.odd and ("the request " .. request.odd)
      or unplaceable(desc, part, settings)
   local kind = request.kind
   if not why and kind and not settings.gpu_types[kind] then why = "the GPU type " .. kind end
   local shape
   if not why then shape, why = shape_of(desc, request, part, settings) end
   if why then
      slurm.log_info("wattle: a job of uid %d is left to Slurm: %s", uid, why)
      return slurm.SUCCESS
   end
   local total = shape.nodes * shape.each
   if terms.gpus and (total < terms.gpus.low or total > terms.gpus.high) then
      return refuse(string.format("comment key `gpus`: %d..%d does not contain the %d GPUs of the request",
         terms.gpus.low, terms.gpus.high, total))
   end

   local tag = new_tag()
   local words = { string.format("wattle: tag=%s nodes=%d gpus_per_node=%d", tag, shape.nodes, shape.each) }
   if desc.priority == 0 then
      words[#words + 1] = "held_by_owner"
      local begin = given(desc.begin_time)
      if begin and begin > os.time() then words[#words + 1] = string.format("begin=%d", begin) end
   end
   -- Slurm 24.11 starts no job with CPUs per GPU and several types of GPU. They become CPUs of each node, and the
   -- tag keeps them for other numbers of GPUs. Memory per GPU stays: the variables of both forms exclude each other.
   local cpus = per_gpu(desc.cpus_per_tres)
   if cpus then
      desc.cpus_per_tres = ""
      desc.pn_min_cpus, desc.min_cpus = cpus * shape.each, cpus * total
      words[#words + 1] = string.format("cpus_per_gpu=%d", cpus)
   end
   local prefix = (desc.tres_per_node or desc.tres_per_job or desc.tres_per_task or ""):match("^gres[:/]") or ""
   -- One form for every request, so that one field changes it later.
   for _, field in ipairs(TRES) do
      if (desc[field] or "") ~= "" then desc[field] = "" end
   end
   desc.tres_per_node = string.format("%sgpu:%d", prefix, shape.each)
   desc.min_nodes, desc.max_nodes = shape.nodes, shape.nodes
   if kind and (desc.features or "") == "" then desc.features = kind end
   if (desc.tres_freq or "") ~= "" then
      desc.tres_freq = ""
      slurm.log_user("%s", "wattle: --gpu-freq is ignored, because Wattle sets the clocks of GPUs")
   end
   if terms.signal then desc.requeue = 1 end
   desc.environment.WATTLE_TAG = tag
   desc.admin_comment = table.concat(words, " ")
   desc.priority = 0
   return slurm.SUCCESS
end

-- Changes --------------------------------------------------------------------------------------------------

local FIXED = {
   { "tres_per_node", "Gres" }, { "tres_per_job", "TresPerJob" }, { "tres_per_task", "TresPerTask" },
   { "tres_per_socket", "TresPerSocket" }, { "req_nodes", "ReqNodeList" }, { "exc_nodes", "ExcNodeList" },
   { "features", "Features" }, { "partition", "Partition" }, { "reservation", "ReservationName" },
}

local function refuse_change(record, message)
   slurm.log_info("wattle: job %d: %s", record.job_id or 0, message)
   -- Slurm 22.05 discards messages to the user here; later releases show them.
   slurm.log_user("%s", "wattle: " .. message)
   return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

local function modify(desc, record, parts, uid)
   local tagged = (record.admin_comment or ""):match("^wattle: tag=%x+")
   if not tagged or not settings.level or settings.operators[uid] or not is_alive() then return slurm.SUCCESS end
   for _, field in ipairs(FIXED) do
      if desc[field[1]] ~= nil then
         return refuse_change(record, field[2] .. " of a job that Wattle places can't be changed; cancel and resubmit it")
      end
   end
   if given(desc.min_nodes) or given(desc.max_nodes) then
      return refuse_change(record, "NumNodes of a job that Wattle places can't be changed; cancel and resubmit it")
   end
   if desc.comment then
      local terms, wrong = read_terms(desc.comment)
      if not terms then return refuse_change(record, wrong) end
   end
   local priority = desc.priority
   if type(priority) == "number" and priority ~= 0 and priority ~= slurm.NO_VAL and record.priority == 0 then
      -- The owner ends a hold. Wattle holds the job again within the grace time; without Wattle, Slurm starts it.
      local begin = tonumber(record.admin_comment:match(" begin=(%d+)")) or 0
      desc.begin_time = math.max(begin, os.time() + GRACE_S)
   end
   return slurm.SUCCESS
end

-- Entry points ---------------------------------------------------------------------------------------------

-- Runs `what`. An error in it is logged, and the job is left to Slurm: the hold is the last change.
local function guarded(what, desc, ...)
   if not settings then
      slurm.log_error("wattle: %s; jobs are left to Slurm", tostring(problem))
      return slurm.SUCCESS
   end
   local fine, result = pcall(what, desc, ...)
   if fine then return result end
   slurm.log_error("wattle: %s; the job is left to Slurm", tostring(result))
   return slurm.SUCCESS
end

function intake.submit(desc, parts, uid) return guarded(submit, desc, parts, uid) end
function intake.modify(desc, record, parts, uid) return guarded(modify, desc, record, parts, uid) end

local function folder()
   return debug.getinfo(1, "S").source:match("^@(.*/)[^/]*$") or ""
end

local fine, result = pcall(read_settings, WATTLE_SLURM_CONF or folder() .. "wattle_slurm.conf")
if fine then settings = result else problem = result end

return intake

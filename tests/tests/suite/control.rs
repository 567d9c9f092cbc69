//! Power agents that do not set GPUs through NVML: through a stand-in of zeusd, and not at all.

use std::path::Path;
use std::sync::Arc;

use nvml_sim::fault::Fault;
use nvml_sim::node::Node as Hardware;
use wattle_common::messages::DesiredGpu;
use wattle_common::{Frequency, Power};
use wattle_gpu::GpuError;
use wattle_gpu::fake_zeusd::{FakeOptions, FakeZeusd, Setting};

use crate::node::{LASTING, Node, SHORT, agent_settings, cap, w};

const CLOCK: Frequency = Frequency::from_mhz(1_200);

fn hardware(node: &Node) -> Arc<Hardware> {
    Arc::new(Hardware::open(&node.path("node")).unwrap())
}

/// The cap and the clock limit of each GPU, from the simulated hardware.
fn settings(hardware: &Hardware) -> Vec<(Power, Option<Frequency>)> {
    let read = hardware.update(|state, _, _| {
        let gpus = (0..2).map(|gpu| state.gpu(gpu, None));
        gpus.map(|gpu| gpu.map(|gpu| (gpu.cap, gpu.clock_max))).collect()
    });
    read.unwrap()
}

/// zeusd with rights over GPUs that refuse every other program.
fn zeusd(socket: &Path, token: &str, hardware: Arc<Hardware>) -> FakeZeusd {
    let options = FakeOptions { token: Some(token.to_owned()), ..FakeOptions::default() };
    let set = move |setting: Setting| {
        let (Setting::Cap(gpu, _) | Setting::Clocks(gpu, _)) = setting;
        let set = hardware.update(|state, model, now| {
            state.set_fault(model, now, gpu, Fault::Clear)?;
            let result = match setting {
                Setting::Cap(gpu, cap) => state.set_cap(model, now, gpu, cap),
                Setting::Clocks(gpu, clocks) => {
                    state.set_clock_max(model, now, gpu, clocks.map(|(_, highest)| highest))
                }
            };
            state.set_fault(model, now, gpu, Fault::NoPermission)?;
            result
        });
        set.map_err(|error| GpuError::Refused {
            gpu,
            operation: "set the GPU",
            remedy: error.to_string(),
        })
    };
    FakeZeusd::start(socket, options, set).unwrap()
}

#[tokio::test]
async fn an_agent_without_rights_holds_caps_through_zeusd() {
    let node = Node::new().await;
    let hardware = hardware(&node);
    for gpu in ["0", "1"] {
        node.fault(gpu, "no-permission");
    }
    let (socket, token) = (node.path("zeusd.sock"), node.path("token"));
    std::fs::write(&token, "a.token\n").unwrap();
    let config = format!(
        "{}\ncontrol = \"zeusd\"\nzeusd_socket = {socket:?}\nzeusd_token_file = {token:?}\nstate_dir = {:?}",
        agent_settings(),
        node.path("state")
    );
    let mut agent = node.service("wattle-power-agent", &config);
    let order = || vec![DesiredGpu { clock_mhz_max: Some(CLOCK), ..cap(0, 150) }];
    node.order(1, LASTING, order()).await;
    let named = "zeusd.sock cannot be reached";
    let absent = |error: &Option<String>| error.as_ref().is_some_and(|e| e.contains(named));
    let report = node.report("zeusd is absent", |r| absent(&r.gpus[0].last_error)).await;
    assert_eq!(report.gpus[0].cap_mw, report.gpus[0].cap_mw_default);
    assert!(report.gpus.iter().all(|gpu| gpu.healthy), "readings need no zeusd");

    let started = zeusd(&socket, "a.token", Arc::clone(&hardware));
    node.report("cap and clock stand", |r| {
        let stands = r.gpus[0].cap_mw == Some(w(150)) && r.gpus[0].clock_mhz_max == Some(CLOCK);
        stands && r.gpus.iter().all(|gpu| gpu.last_error.is_none())
    })
    .await;
    assert_eq!(settings(&hardware), [(w(150), Some(CLOCK)), (w(250), None)]);

    // The lease ends, and the safe caps are set through zeusd.
    node.order(2, SHORT, order()).await;
    let safe = |cap: Option<Power>| cap == Some(w(250));
    node.report("the lease ends", |r| r.lease_until_us.is_none() && safe(r.gpus[0].cap_mw)).await;
    node.order(3, LASTING, order()).await;
    node.report("the cap stands", |r| r.gpus[0].cap_mw == Some(w(150))).await;
    agent.signal(libc::SIGTERM);
    assert!(agent.0.wait().unwrap().success());
    assert_eq!(settings(&hardware), [(w(250), None), (w(250), None)], "{}", node.logs());

    // Also after a kill, by the command of the service manager.
    let agent = node.service("wattle-power-agent", &config);
    node.order(4, LASTING, order()).await;
    node.report("the cap stands again", |r| {
        r.observed_generation == 4 && r.gpus[0].cap_mw == Some(w(150))
    })
    .await;
    agent.kill();
    let mut reset = node.command("wattle-power-agent");
    reset.arg("--config").arg(node.config("wattle-power-agent", &config)).arg("reset");
    let done = reset.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(settings(&hardware)[0].0, w(250));
    assert!(started.requests().iter().all(|request| request.contains("block=true")));

    // zeusd stops before the agent: the cap stays, is reported, and does not count as the site's own.
    let mut agent = node.service("wattle-power-agent", &config);
    node.order(5, LASTING, order()).await;
    node.report("the cap stands once more", |r| {
        r.observed_generation == 5 && r.gpus[0].cap_mw == Some(w(150))
    })
    .await;
    drop(started);
    agent.signal(libc::SIGTERM);
    assert!(agent.0.wait().unwrap().success());
    assert_eq!(settings(&hardware)[0].0, w(150));
    assert!(node.logs().contains("not every GPU is known to be in its safe state"));
    let _again = zeusd(&socket, "a.token", Arc::clone(&hardware));
    let mut reset = node.command("wattle-power-agent");
    reset.arg("--config").arg(node.config("wattle-power-agent", &config)).arg("reset");
    assert!(reset.output().unwrap().status.success());
    assert_eq!(settings(&hardware), [(w(250), None), (w(250), None)]);
}

#[tokio::test]
async fn an_agent_that_only_advises_sets_nothing() {
    let node = Node::new().await;
    let hardware = hardware(&node);
    // Settings of the site, which no start, order, lease or stop changes.
    hardware
        .update(|state, model, now| {
            state.set_cap(model, now, 0, w(240))?;
            state.set_clock_max(model, now, 1, Some(CLOCK))
        })
        .unwrap();
    let before = settings(&hardware);
    let config = format!(
        "{}\ncontrol = \"advise\"\nsafe_cap_w = 200\nstate_dir = {:?}",
        agent_settings(),
        node.path("state")
    );
    let mut agent = node.service("wattle-power-agent", &config);
    node.order(1, LASTING, vec![DesiredGpu { clock_mhz_max: Some(CLOCK), ..cap(0, 150) }]).await;
    let report = node.report("advice", |r| r.gpus[0].cap_mw_advised == Some(w(150))).await;
    assert!(report.advise_only);
    assert_eq!((report.gpus[0].cap_mw, report.gpus[0].clock_mhz_max), (Some(w(240)), None));
    assert_eq!(report.gpus[0].clock_mhz_max_advised, Some(CLOCK));
    assert_eq!(settings(&hardware), before);

    node.order(2, SHORT, vec![cap(0, 120)]).await;
    node.report("the lease ends", |r| r.observed_generation == 2 && r.lease_until_us.is_none())
        .await;
    let report = node.report("safe caps", |r| r.gpus[1].cap_mw_advised == Some(w(200))).await;
    assert!(report.gpus.iter().all(|gpu| gpu.last_error.is_none()), "{report:?}");
    assert_eq!(settings(&hardware), before);
    agent.signal(libc::SIGTERM);
    assert!(agent.0.wait().unwrap().success());
    let mut reset = node.command("wattle-power-agent");
    reset.arg("--config").arg(node.config("wattle-power-agent", &config)).arg("reset");
    let done = reset.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(settings(&hardware), before);
    assert!(!node.path("state").exists(), "caps found by an earlier agent stay stored");
    let errors: Vec<String> =
        node.logs().lines().filter(|line| line.contains("ERROR")).map(str::to_owned).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

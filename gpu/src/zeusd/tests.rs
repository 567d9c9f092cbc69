//! The driver against a stand-in of zeusd, and without one.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex};

use super::*;
use crate::fake::{FakeDriver, FaultMode, UnsettableDriver};
use crate::fake_zeusd::{FakeOptions, FakeZeusd, Form, Setting};

struct Bench {
    gpus: Arc<Mutex<FakeDriver>>,
    zeusd: Option<FakeZeusd>,
    driver: ZeusdDriver,
    folder: tempfile::TempDir,
}

fn bench(options: Option<FakeOptions>, token: Option<&str>) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let gpus = Arc::new(Mutex::new(FakeDriver::v100s(2)));
    let socket = folder.path().join("zeusd.sock");
    let set = Arc::clone(&gpus);
    let zeusd = options.map(|options| {
        let apply = move |setting| match setting {
            Setting::Cap(gpu, cap) => set.lock().unwrap().set_cap(gpu, cap),
            Setting::Clocks(gpu, clocks) => {
                set.lock().unwrap().set_clock_max(gpu, clocks.map(|(_, highest)| highest))
            }
        };
        FakeZeusd::start(&socket, options, apply).unwrap()
    });
    let token_file = token.map(|token| {
        let file = folder.path().join("token");
        std::fs::write(&file, token).unwrap();
        file
    });
    let endpoint = Endpoint::Socket(socket);
    let config = Zeusd { endpoint, token_file, timeout: Duration::from_millis(300) };
    let driver = ZeusdDriver::new(Box::new(UnsettableDriver(Arc::clone(&gpus))), config);
    Bench { gpus, zeusd, driver, folder }
}

fn w(watts: u64) -> Power {
    Power::from_w(watts)
}

fn text(result: Result<(), GpuError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn settings_are_made_by_the_daemon_in_either_form() {
    for form in [Form::Query, Form::Body] {
        let mut bench = bench(Some(FakeOptions { form, ..FakeOptions::default() }), None);
        bench.driver.set_cap(1, w(200)).unwrap();
        bench.driver.set_clock_max(0, Some(Frequency::from_mhz(1_200))).unwrap();
        bench.driver.set_clock_max(1, None).unwrap();
        assert_eq!(bench.driver.read(1).unwrap().cap, Some(w(200)), "{form:?}");
        let gpus = bench.gpus.lock().unwrap();
        assert_eq!(gpus.gpus[0].clock_max, Some(Frequency::from_mhz(1_200)));
        let made = bench.zeusd.as_ref().unwrap().requests();
        let (expected, step): (&[&str], _) = match form {
            Form::Query => (
                &[
                    "POST /gpu/set_power_limit?gpu_ids=1&power_limit_mw=200000&block=true",
                    "POST /gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=135&max_clock_mhz=1200&block=true",
                    "POST /gpu/reset_gpu_locked_clocks?gpu_ids=1&block=true",
                ],
                1,
            ),
            Form::Body => (
                &[
                    r#"POST /gpu/1/set_power_limit {"power_limit_mw":200000,"block":true}"#,
                    r#"POST /gpu/0/set_gpu_locked_clocks {"min_clock_mhz":135,"max_clock_mhz":1200,"block":true}"#,
                    r#"POST /gpu/1/reset_gpu_locked_clocks {"block":true}"#,
                ],
                2,
            ),
        };
        let last: Vec<_> = made.iter().skip(step - 1).step_by(step).collect();
        assert_eq!(last, expected);
    }
}

#[test]
fn refusals_of_the_daemon_are_those_of_a_driver() {
    let mut bench = bench(Some(FakeOptions::default()), None);
    let refused = text(bench.driver.set_cap(0, w(99)));
    assert!(refused.contains("GPU 0: cannot set the power cap"), "{refused}");
    assert!(refused.contains("zeusd.sock: NVML error: a supplied argument was invalid"));
    let unknown = text(bench.driver.set_cap(7, w(200)));
    assert!(unknown.contains("GPU index 7 does not exist"), "{unknown}");
    bench.gpus.lock().unwrap().gpus[0].info.cap_min = None;
    let unsupported = bench.driver.set_cap(0, w(200));
    assert!(matches!(unsupported, Err(GpuError::Unsupported { gpu: 0, .. })), "{unsupported:?}");
    bench.gpus.lock().unwrap().gpus[1].fault = FaultMode::Lost;
    let lost = bench.driver.set_cap(1, w(200));
    assert!(matches!(lost, Err(GpuError::Lost { gpu: 1, .. })), "{lost:?}");
    bench.gpus.lock().unwrap().gpus[1].fault = FaultMode::Transient;
    assert!(matches!(bench.driver.set_cap(1, w(200)), Err(GpuError::Retry { .. })));
}

#[test]
fn a_token_is_sent_and_its_absence_is_named() {
    let secured = || FakeOptions { token: Some("abc.def".to_owned()), ..FakeOptions::default() };
    let mut with = bench(Some(secured()), Some("abc.def\n"));
    with.driver.set_cap(0, w(200)).unwrap();
    for token in [None, Some("other")] {
        let refused = text(bench(Some(secured()), token).driver.set_cap(0, w(200)));
        assert!(refused.contains("zeusd_token_file") && !refused.contains("other"), "{refused}");
    }
    // A line break in a token would end the header.
    let refused = text(bench(Some(secured()), Some("abc\r\nX: y")).driver.set_cap(0, w(200)));
    assert!(refused.contains("it has no token in one line"), "{refused}");
    std::fs::remove_file(with.folder.path().join("token")).unwrap();
    let refused = text(with.driver.set_cap(0, w(210)));
    assert!(refused.contains("No such file"), "{refused}");
}

#[test]
fn an_unreachable_daemon_is_named_with_the_remedy() {
    let mut absent = bench(None, None);
    let error = text(absent.driver.set_cap(0, w(200)));
    assert!(error.contains("zeusd.sock cannot be reached"), "{error}");
    assert!(error.ends_with("start zeusd, or correct zeusd_socket"), "{error}");
    assert!(absent.driver.read(0).is_ok(), "readings need no daemon");
    let left_behind = UnixListener::bind(absent.folder.path().join("zeusd.sock")).unwrap();
    drop(left_behind);
    let error = text(absent.driver.set_cap(0, w(200)));
    assert!(error.ends_with("it left this socket behind"), "{error}");
    let off = FakeOptions { control_off: true, ..FakeOptions::default() };
    let error = text(bench(Some(off), None).driver.set_clock_max(0, None));
    assert!(error.ends_with("start zeusd with --enable gpu-control"), "{error}");
}

#[test]
fn a_daemon_that_hangs_costs_one_time_out_per_reading() {
    let hangs = FakeOptions { hangs: true, ..FakeOptions::default() };
    let mut bench = bench(Some(hangs), None);
    for gpu in [0, 1, 0, 1] {
        let error = bench.driver.set_cap(gpu, w(200));
        assert!(matches!(&error, Err(GpuError::Retry { .. })), "{error:?}");
        assert!(text(error).contains("did not answer"));
    }
    let requests = |bench: &Bench| bench.zeusd.as_ref().unwrap().requests().len();
    assert_eq!(requests(&bench), 1);
    bench.driver.read(0).unwrap();
    assert!(bench.driver.set_cap(0, w(200)).is_err());
    assert_eq!(requests(&bench), 2);
}

#[test]
fn a_daemon_with_other_gpus_is_found_by_the_cap() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("zeusd.sock");
    let _zeusd = FakeZeusd::start(&socket, FakeOptions::default(), |_| Ok(())).unwrap();
    let zeusd = Zeusd { endpoint: Endpoint::Socket(socket), token_file: None, timeout: TIMEOUT };
    let mut driver = ZeusdDriver::new(Box::new(FakeDriver::v100s(1)), zeusd);
    let error = text(driver.set_cap(0, w(200)));
    assert!(error.contains("has set 200 W and this GPU has 300 W"), "{error}");
    driver.set_cap(0, w(300)).unwrap();
}

#[test]
fn a_daemon_on_a_tcp_port_is_reached() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 1 << 10];
        let len = stream.read(&mut request).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        String::from_utf8_lossy(&request[..len]).into_owned()
    });
    let zeusd = Zeusd { endpoint: Endpoint::Tcp(address), token_file: None, timeout: TIMEOUT };
    let mut driver = ZeusdDriver::new(Box::new(FakeDriver::v100s(1)), zeusd);
    driver.set_clock_max(0, None).unwrap();
    let request = served.join().unwrap();
    assert!(request.starts_with("POST /gpu/reset_gpu_locked_clocks?gpu_ids=0&block=true HTTP/1.1"));
    let error = text(driver.set_clock_max(0, None));
    assert!(error.ends_with("start zeusd with --mode tcp, or correct zeusd_address"), "{error}");
}

#[test]
fn a_response_without_end_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("zeusd.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let endless = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1 << 10]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4 << 10]).is_ok() {}
    });
    let zeusd = Zeusd { endpoint: Endpoint::Socket(socket), token_file: None, timeout: TIMEOUT };
    let mut driver = ZeusdDriver::new(Box::new(FakeDriver::v100s(1)), zeusd);
    driver.set_cap(0, w(200)).unwrap_err();
    drop(driver);
    endless.join().unwrap();
}

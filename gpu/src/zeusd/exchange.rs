//! One HTTP exchange over a new connection: every step within a time-out, the response within a size.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::Endpoint;
use super::reply::Reply;

/// Most bytes of a response; an error of zeusd has a few hundred.
const RESPONSE_LEN_MAX: usize = 64 << 10;
/// Most reads of a response, each within the time-out: a response is sent in one or two pieces.
const READS_MAX: usize = 8;

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Sends a request with `Connection: close` and returns the response.
///
/// # Errors
/// The operating system's error; `InvalidData` for a response that is not HTTP or too large.
pub(super) fn exchange(
    endpoint: &Endpoint,
    timeout: Duration,
    request: &[u8],
) -> io::Result<Reply> {
    let mut stream: Box<dyn Stream> = match endpoint {
        Endpoint::Socket(path) => Box::new(unix(path, timeout)?),
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, timeout)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Box::new(stream)
        }
    };
    stream.write_all(request)?;
    let mut response = Vec::new();
    let mut piece = [0; 4 << 10];
    for _ in 0..READS_MAX {
        let len = stream.read(&mut piece)?;
        response.extend_from_slice(&piece[..len]);
        if response.len() > RESPONSE_LEN_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the response is too large"));
        }
        if let Some(reply) = Reply::read(&response, len == 0)? {
            return Ok(reply);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// A Unix socket with time-outs, also of the connection: a daemon that hangs accepts none.
fn unix(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

//! The user at the operating system.

/// The name of the user that runs this process: `USER` or `LOGNAME`, else the name in `/etc/passwd`, else
/// the numeric id.
#[must_use]
pub fn local_user() -> String {
    let named = ["USER", "LOGNAME"].into_iter().filter_map(|key| std::env::var(key).ok());
    let name = named.map(|name| name.trim().to_owned()).find(|name| !name.is_empty());
    let id = rustix::process::getuid().as_raw().to_string();
    let passwd = || std::fs::read_to_string("/etc/passwd").ok();
    name.or_else(|| user_in(&passwd()?, &id)).unwrap_or(id)
}

/// The name of the user with this numeric id, from lines of `name:password:id:...`.
fn user_in(passwd: &str, id: &str) -> Option<String> {
    let users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut found = users.filter(|fields| fields.get(2) == Some(&id));
    found.next()?.first().map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_id() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000::/home/ada:/bin/sh\n";
        assert_eq!(user_in(passwd, "1000").as_deref(), Some("ada"));
        assert_eq!(user_in(passwd, "1"), None);
    }
}

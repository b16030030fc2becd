//! The kernel's tables of TCP sockets as text, `/proc/PID/net/tcp` and `tcp6` (proc_pid_net(5)).
//!
//! Reading one takes milliseconds on a machine with much memory, whatever is in it: the kernel looks at
//! every place where a connection could be.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::{Ends, Row};

const TABLES: [&str; 2] = ["tcp", "tcp6"];

/// State `LISTEN`.
const LISTEN: &str = "0A";

/// The sockets that listen in the network namespace of a process; none where its tables cannot be read.
pub(super) fn listening(process: &str) -> Vec<Row> {
    let rows = |name| rows(&table_of(process, name));
    TABLES.into_iter().flat_map(rows).collect()
}

/// Whether a socket with these ends is in this process's own network namespace.
pub(super) fn has(ends: Ends) -> bool {
    let is = |line: &str| ends_of(line) == Some(ends);
    TABLES
        .into_iter()
        .any(|name| table_of("self", name).lines().any(is))
}

fn table_of(process: &str, name: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default()
}

/// The listening rows of a table.
fn rows(table: &str) -> Vec<Row> {
    table.lines().filter_map(row).collect()
}

/// A listening row: local address in hexadecimal (field 2), state (4), queues to send and of those not
/// accepted yet (5), inode (10).
fn row(line: &str) -> Option<Row> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    if *fields.get(3)? != LISTEN {
        return None;
    }
    let (_, waiting) = fields.get(4)?.split_once(':')?;
    Some(Row {
        bound: address_of(fields.get(1)?)?,
        inode: fields.get(9)?.parse().ok()?,
        waiting: u32::from_str_radix(waiting, 16).ok()?,
    })
}

/// Both ends of a connection, this one's first: fields 2 and 3.
fn ends_of(line: &str) -> Option<Ends> {
    let mut fields = line.split_whitespace().skip(1);
    let mut end = || {
        let end = address_of(fields.next()?)?;
        Some(SocketAddr::new(end.ip().to_canonical(), end.port()))
    };
    Some(Ends {
        near: end()?,
        far: end()?,
    })
}

fn address_of(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddr::new(ip_of(ip)?, port))
}

/// Words of 32 bits, each in the machine's byte order.
fn ip_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| -> Option<[u8; 4]> {
        let word = u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for at in 0..4 {
                octets[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn rows_of_listeners_are_read_and_no_others() {
        let line = |local: &str, state: &str| {
            format!(
                "   0: {local} 00000000:0000 {state} 00000000:00000002 00:00000000 00000000     0        0 7 1 0 100 0 0 10 0\n"
            )
        };
        let table = [
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
                .to_owned(),
            line("0100007F:1F90", "01"),
            line("0100007F:1F91", "0A"),
            line("0000000000000000FFFF00000100007F:1F92", "0A"),
        ]
        .concat();
        let row = |bound: &str| Row {
            bound: bound.parse().unwrap(),
            inode: 7,
            waiting: 2,
        };
        assert_eq!(
            rows(&table),
            [row("127.0.0.1:8081"), row("[::ffff:127.0.0.1]:8082")]
        );
    }
}

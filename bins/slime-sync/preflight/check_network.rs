//! Whether this node can listen and connect on the interface that the job will use.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use slime_comm::{Interface, interfaces};

use super::check::Check;

/// Longest time for a connection of a host with itself.
const PATIENCE: Duration = Duration::from_secs(5);
const NAME: &str = "tcp";

/// Listens, connects and passes a byte over the interface that `pattern` chooses.
pub fn tcp(pattern: Option<&str>) -> Check {
    let named = std::env::var("NCCL_SOCKET_IFNAME").ok();
    let pattern = pattern.or(named.as_deref()).filter(|pattern| !pattern.is_empty());
    let all = match interfaces() {
        Ok(all) => all,
        Err(error) => return Check::bad(NAME, error, "a list of interfaces", "look at the node's network"),
    };
    let Some(chosen) = choose(&all, pattern) else {
        let names: BTreeSet<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let expected = format!("an interface {} that is up", pattern.unwrap_or("with an IP address"));
        let hint = "name one with --interface or NCCL_SOCKET_IFNAME";
        return Check::bad(NAME, format!("only {}", names.join(", ")), expected, hint);
    };
    let got = format!("{} {}", chosen.name, chosen.address);
    match round_trip(chosen.address) {
        Ok(()) => Check::ok(NAME, got),
        Err(error) => {
            let hint = "look at the firewall and the free ports of the node";
            Check::bad(NAME, format!("{got}: {error}"), "a port that can be bound and connected", hint)
        }
    }
}

fn round_trip(address: IpAddr) -> std::io::Result<()> {
    let listener = TcpListener::bind((address, 0))?;
    let place: SocketAddr = listener.local_addr()?;
    let mut there = TcpStream::connect_timeout(&place, PATIENCE)?;
    let (mut here, _) = listener.accept()?;
    there.write_all(&[7])?;
    here.set_read_timeout(Some(PATIENCE))?;
    let mut byte = [0];
    here.read_exact(&mut byte)
}

/// The first interface of `pattern`, IPv4 before IPv6; without one the first that leads out, else loopback.
fn choose<'a>(all: &'a [Interface], pattern: Option<&str>) -> Option<&'a Interface> {
    // A link-local address of IPv6 cannot be connected without its scope.
    let is_usable = |i: &&Interface| match i.address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let mut usable: Vec<&Interface> = all.iter().filter(is_usable).collect();
    usable.sort_by_key(|interface| interface.address.is_ipv6());
    if let Some(pattern) = pattern {
        return usable.into_iter().find(|interface| matches(pattern, &interface.name));
    }
    let leads_out = |i: &&&Interface| !i.is_loopback && !matches("docker,virbr,veth", &i.name);
    usable.iter().find(leads_out).or(usable.first()).copied()
}

/// The rules of `NCCL_SOCKET_IFNAME`: prefixes, with `=` whole names, with `^` all but these.
fn matches(pattern: &str, name: &str) -> bool {
    let (is_not, rest) = pattern.strip_prefix('^').map_or((false, pattern), |rest| (true, rest));
    let (is_exact, names) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
    let fits = |wanted: &str| if is_exact { name == wanted } else { name.starts_with(wanted) };
    names.split(',').filter(|wanted| !wanted.is_empty()).any(fits) != is_not
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    fn interface(name: &str, address: &str, is_loopback: bool) -> Interface {
        Interface { name: name.into(), address: address.parse().unwrap(), is_loopback }
    }

    #[test]
    fn patterns_are_those_of_nccl() {
        assert!(matches("eth", "eth0") && matches("hsn,eth", "eth0") && !matches("eth", "ib0"));
        assert!(matches("=eth0", "eth0") && !matches("=eth", "eth0"));
        assert!(!matches("^docker,lo", "lo") && matches("^docker,lo", "eth0") && matches("^=eth", "eth0"));
    }

    #[test]
    fn interface_that_leads_out_comes_first() {
        let all = [
            interface("lo", "127.0.0.1", true),
            interface("docker0", "172.17.0.1", false),
            interface("ib0", "fd00::2", false),
            interface("eth0", "fe80::1", false),
            interface("eth0", "10.0.0.2", false),
        ];
        let name = |pattern| choose(&all, pattern).map(|i| (i.name.as_str(), i.address.to_string()));
        assert_eq!(name(None), Some(("eth0", "10.0.0.2".into())));
        assert_eq!(name(Some("ib")), Some(("ib0", "fd00::2".into())));
        assert_eq!(name(Some("hsn")), None);
        assert_eq!(choose(&all[..1], None).map(|i| i.name.as_str()), Some("lo"));
    }

    #[test]
    fn loopback_carries_a_byte_and_an_absent_interface_is_bad() {
        assert_eq!(tcp(Some("=lo")).verdict, Verdict::Ok);
        let absent = tcp(Some("nosuch"));
        assert_eq!(absent.verdict, Verdict::Bad);
        assert!(absent.got.contains("lo"), "{}", absent.got);
    }
}

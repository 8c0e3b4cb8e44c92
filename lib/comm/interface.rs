//! The network interfaces of this host and their addresses.
#![expect(unsafe_code, reason = "walks the list of getifaddrs(3)")]

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;

/// An address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The system's name for it, such as `eth0`.
    pub name: String,
    /// One of its addresses; an interface with several is listed once for each.
    pub address: IpAddr,
    /// It leads to this host only.
    pub is_loopback: bool,
}

/// The interfaces that are up, in the system's order.
///
/// # Errors
/// The system refuses to list them.
pub fn interfaces() -> std::io::Result<Vec<Interface>> {
    let mut first = null_mut();
    // SAFETY: points to a live variable, which gets a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next: *const libc::ifaddrs = first;
    // SAFETY: every node is one of the list's, which lives until it is freed.
    while let Some(node) = unsafe { next.as_ref() } {
        next = node.ifa_next;
        let flags = node.ifa_flags as libc::c_int;
        let Some(address) = address(node) else { continue };
        if flags & libc::IFF_UP == 0 {
            continue;
        }
        // SAFETY: the name of a node is a C string of the list.
        let name = unsafe { CStr::from_ptr(node.ifa_name) }.to_string_lossy().into_owned();
        found.push(Interface { name, address, is_loopback: flags & libc::IFF_LOOPBACK != 0 });
    }
    // SAFETY: the list came from getifaddrs and is freed once; what was taken from it are copies.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The address of a node; none for families other than IP.
fn address(node: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: the pointer is null or that of an address of the list.
    let family = unsafe { node.ifa_addr.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a sockaddr_in; the list need not align it.
            let address = unsafe { node.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a sockaddr_in6; the list need not align it.
            let address = unsafe { node.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_listed_with_its_address() {
        let found = interfaces().unwrap();
        let loopback = found.iter().find(|interface| interface.address == Ipv4Addr::LOCALHOST).unwrap();
        assert!(loopback.is_loopback);
        for interface in found.iter().filter(|interface| interface.address.is_ipv4()) {
            // An address of this host can be bound; a wrong byte order cannot.
            std::net::TcpListener::bind((interface.address, 0)).unwrap();
        }
    }
}

//! A virtual machine that is an iSCSI initiator, as an administrator sets one up on Debian: open-iscsi, multipath-tools and udev, with
//! the kernel's own dm-multipath and its handler of ALUA. It is a host of a network of namespaces, and reaches the portals on the others.
//!
//! | module | idea |
//! | --- | --- |
//! | `image` | what the machine consists of |
//! | `guest` | a running one, and the commands that it carries out |
//! | `init.sh` | its first process |
//! | `load.sh` | the command `load` in it: writes that are checked |
//! | `paths` | its paths and its load, and what is expected of them |
//! | `reserve` | persistent reservations, as a failover cluster uses them |
//! | `paths.sh` | the command `paths` in it: the states of its paths |
//! | `lio.sh` | the command `lio` in it: it is a target then, that of Linux itself, with ALUA |
//!
//! It needs root, for the namespaces, and what `./dev setup --tests` has put into the target folder.

#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod guest;
pub(crate) mod image;
pub(crate) mod paths;
pub(crate) mod reserve;

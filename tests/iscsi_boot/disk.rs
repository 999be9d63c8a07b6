//! A disk from which a virtual machine boots by its firmware alone.
//!
//! | sectors | what they have |
//! | --- | --- |
//! | 0 | `boot.s`, its table of pieces, and the partition table |
//! | from 1 on | the pieces: the setup of a Linux kernel, its command line, the kernel, its first file system |
//! | behind these | partition 1 |

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::nodes::machine::Image;
use crate::nodes::run;

const SECTOR: usize = 512;
/// Where the pieces go in the memory of the machine. `boot.s` starts the setup.
const SETUP: u32 = 0x8_0000;
const COMMAND_LINE: u32 = 0x8_e000;
const KERNEL: u32 = 0x10_0000;
const FIRST_FILE_SYSTEM: u32 = 0xa00_0000;
/// Where they are in the first sector.
const TABLE: usize = 384;
const PARTITIONS: usize = 446;

/// Writes such a disk of this size to a file: it boots this image, with partition 1 behind. `folder` is for what is made on the way.
pub(crate) fn write(image: &Image, folder: &Path, disk: &Path, bytes: u64) {
    let kernel = fs::read(&image.kernel).expect("./dev setup --tests makes it");
    let first_file_system = fs::read(&image.initramfs).expect("it was made");
    let setup = (usize::from(kernel[0x1f1]) + 1) * SECTOR;
    let end = setup + 16 * u32::from_le_bytes(kernel[0x1f4..0x1f8].try_into().expect("four bytes")) as usize;
    let (mut setup, kernel) = (kernel[..setup].to_vec(), &kernel[setup..end]);
    // The header by which a boot loader and Linux know each other. This loader has no number.
    setup[0x210] = 0xff;
    // There is a heap: up to the stack of `boot.s`, without 512 bytes.
    setup[0x211] |= 0x80;
    setup[0x224..0x226].copy_from_slice(&(0xe000_u16 - 0x200).to_le_bytes());
    setup[0x218..0x21c].copy_from_slice(&FIRST_FILE_SYSTEM.to_le_bytes());
    setup[0x21c..0x220].copy_from_slice(&(first_file_system.len() as u32).to_le_bytes());
    setup[0x228..0x22c].copy_from_slice(&COMMAND_LINE.to_le_bytes());

    let mut content = assemble(folder);
    let pieces: [(u32, &[u8]); 4] = [
        (SETUP, &setup),
        (COMMAND_LINE, b"console=ttyS0 quiet panic=-1\0"),
        (KERNEL, kernel),
        (FIRST_FILE_SYSTEM, &first_file_system),
    ];
    for (number, (to, piece)) in pieces.into_iter().enumerate() {
        let first = (content.len() / SECTOR) as u32;
        content.extend(piece);
        content.resize(content.len().next_multiple_of(SECTOR), 0);
        let sectors = piece.len().div_ceil(SECTOR) as u32;
        let entry = [first, sectors, to].map(u32::to_le_bytes).concat();
        content[TABLE + 12 * number..][..12].copy_from_slice(&entry);
    }
    // From a full mebibyte to the end of the disk, of the kind of Linux.
    let first = content.len().next_multiple_of(1 << 20) / SECTOR;
    let sectors = bytes as usize / SECTOR - first;
    content[PARTITIONS + 4] = 0x83;
    content[PARTITIONS + 8..][..4].copy_from_slice(&(first as u32).to_le_bytes());
    content[PARTITIONS + 12..][..4].copy_from_slice(&(sectors as u32).to_le_bytes());
    fs::write(disk, &content).expect("there is room");
    File::options().write(true).open(disk).and_then(|file| file.set_len(bytes)).expect("there is room");
}

/// The first sector.
fn assemble(folder: &Path) -> Vec<u8> {
    let [source, object, sector] = ["boot.s", "boot.o", "boot"].map(|name| folder.join(name));
    fs::write(&source, include_str!("boot.s")).expect("there is room");
    // Both come with the compiler that links Rust programs.
    run(Command::new("as").args(["--32", "-o"]).args([&object, &source]));
    let format = ["-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o"];
    run(Command::new("ld").args(format).args([&sector, &object]));
    let sector = fs::read(sector).expect("it was made");
    assert_eq!(sector.len(), SECTOR);
    sector
}

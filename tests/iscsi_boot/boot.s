# The first sector of a disk from which a virtual machine boots: it has the firmware read the pieces of a Linux kernel from the disk, and
# starts it, as Documentation/arch/x86/boot.rst of Linux says. `disk.rs` writes the table of pieces, and the pieces.

    .code16
    .set buffer_segment, 0x1000     # where the firmware reads to: 32 KiB at 0x10000
    .set most, 64                   # sectors that are read at once
    .set setup_segment, 0x8000      # where the table puts the kernel's setup
    .set stack, 0xe000

    .globl _start
_start:
    ljmp    $0, $begin
begin:
    cli
    xorw    %ax, %ax
    movw    %ax, %ds
    movw    %ax, %es
    movw    %ax, %ss
    movw    $0x7c00, %sp
    sti
    cld
    movb    %dl, drive
    movw    $pieces, %di

piece:
    movl    4(%di), %eax            # sectors of it that are left
    testl   %eax, %eax
    jz      next
    cmpl    $most, %eax
    jbe     1f
    movl    $most, %eax
1:  movw    %ax, packet_sectors
    movl    (%di), %ebx             # its next sector
    movl    %ebx, packet_first

    movw    $packet, %si
    movb    drive, %dl
    movb    $0x42, %ah              # an extended read
    int     $0x13
    jc      failed

    movl    8(%di), %ebx            # where it goes, maybe beyond the first mebibyte
    movw    %bx, to + 2
    shrl    $16, %ebx
    movb    %bl, to + 4
    movb    %bh, to + 7
    movw    packet_sectors, %cx
    shlw    $8, %cx                 # words
    movw    $descriptors, %si
    movb    $0x87, %ah              # a copy by physical addresses
    int     $0x15
    jc      failed

    movzwl  packet_sectors, %eax
    addl    %eax, (%di)
    subl    %eax, 4(%di)
    shll    $9, %eax
    addl    %eax, 8(%di)
    jmp     piece
next:
    addw    $12, %di
    cmpw    $pieces_end, %di
    jb      piece

    cli
    movw    $setup_segment, %ax
    movw    %ax, %ds
    movw    %ax, %es
    movw    %ax, %fs
    movw    %ax, %gs
    movw    %ax, %ss
    movw    $stack, %sp
    ljmp    $setup_segment + 0x20, $0

failed:                             # says so at the first serial port
    movw    $text, %si
1:  lodsb
    movw    $0x3f8, %dx
    outb    %al, %dx
    cmpb    $'\n', %al
    jne     1b
    cli
    hlt

text:
    .ascii  "the firmware does not read the disk\n"
drive:
    .byte   0
packet:                             # of an extended read
    .byte   16, 0
packet_sectors:
    .word   0
    .word   0, buffer_segment
packet_first:
    .long   0, 0
descriptors:                        # of a copy: two of the firmware's, the buffer, where it goes, two of the firmware's
    .fill   16, 1, 0
    .word   0xffff, 0
    .byte   buffer_segment >> 12, 0x93, 0, 0
to:
    .word   0xffff, 0
    .byte   0, 0x93, 0, 0
    .fill   16, 1, 0

    .org    384
pieces:                             # of each: its first sector, how many it has, and its address
    .fill   4 * 12, 1, 0
pieces_end:
    .org    510
    .byte   0x55, 0xaa

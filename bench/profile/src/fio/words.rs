//! Every option of fio 3.33, and whether its value may be the next word of a command line.
//!
//! The lists are what `fio --cmdhelp=all`, `fio --enghelp=io_uring` and `fio --help` name. That an option is listed
//! does not mean that it is supported: see `options` and `others`.

/// How an option of a command line gets its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// After an equals sign, or as the next word.
    Value,
    /// After an equals sign or not at all: the next word is another option.
    ValueOrNothing,
}

/// How the option `key` gets its value; `None` if fio has no such option.
pub(super) fn takes(key: &str) -> Option<Takes> {
    if SWITCHES.contains(&key) {
        Some(Takes::ValueOrNothing)
    } else {
        WITH_VALUE.split_ascii_whitespace().any(|known| known == key).then_some(Takes::Value)
    }
}

const SWITCHES: [&str; 26] = [
    "append-terse",
    "bandwidth-log",
    "blocksize_unaligned",
    "bs_unaligned",
    "exitall",
    "exitall_on_error",
    "fixedbufs",
    "group_reporting",
    "hipri",
    "minimal",
    "new_group",
    "nonvectored",
    "norandommap",
    "parse-only",
    "readonly",
    "refill_buffers",
    "registerfiles",
    "showcmd",
    "sqthread_poll",
    "stonewall",
    "thread",
    "time_based",
    "verify_only",
    "wait_for_previous",
    "warnings-fatal",
    "zero_buffers",
];

const WITH_VALUE: &str = "\
    alloc-size allow_file_create allow_mounted_write allrandrepeat atomic aux-path ba block_error_percentiles
    blockalign blocksize blocksize_range bs bsrange bssplit buffer_compress_chunk buffer_compress_percentage
    buffer_pattern buffered bwavgtime cgroup cgroup_nodelete cgroup_weight clat_percentiles clocksource cmd_type
    cmdprio cmdprio_bssplit cmdprio_class cmdprio_percentage continue_on_error cpumask cpus_allowed
    cpus_allowed_policy create_fsync create_on_open create_only create_serialize debug dedupe_global dedupe_mode
    dedupe_percentage dedupe_working_set_percentage description direct directory disable_bw
    disable_bw_measurement disable_clat disable_lat disable_slat disk_util do_verify end_fsync error_dump eta
    eta-interval eta-newline exec_postrun exec_prerun exit_what experimental_verify fadvise_hint fallocate
    fdatasync file_append file_service_type filename filename_format fileoffset filesize fill_device fill_fs
    flow flow_id flow_sleep force_async fsync fsync_on_close gid gtod_cpu gtod_reduce hugepage-size idle-prof
    ignore_error ignore_zone_limits invalidate io_limit io_size io_submit_mode iodepth iodepth_batch
    iodepth_batch_complete iodepth_batch_complete_max iodepth_batch_complete_min iodepth_batch_submit
    iodepth_low ioengine iomem iopsavgtime ioscheduler job_max_open_zones kb_base lat_percentiles
    latency_percentile latency_run latency_target latency_window lockfile lockmem log_alternate_epoch
    log_alternate_epoch_clock_id log_avg_msec log_compression log_compression_cpus log_entries
    log_hist_coarseness log_hist_msec log_max_value log_offset log_prio log_store_compressed log_unix_epoch
    loops max-jobs max_latency max_open_zones mem merge_blktrace_file merge_blktrace_iters
    merge_blktrace_scalars name nice nowait nr_files nrfiles numa_cpu_nodes numa_mem_policy number_ios numjobs
    offset offset_align offset_increment opendir openfiles output output-format overwrite per_job_logs
    percentage_random percentile_list pre_read prio prioclass profile ramp_time random_distribution
    random_generator randrepeat randseed rate rate_cycle rate_ignore_thinktime rate_iops rate_iops_min rate_min
    rate_process ratecycle ratemin read_beyond_wp read_iolog read_iolog_chunked readwrite replay_align
    replay_no_stall replay_redirect replay_scale replay_skip replay_time_scale runtime rw rw_sequencer rwmixread
    rwmixwrite scramble_buffers section serialize_overlap significant_figures size slat_percentiles
    sqthread_poll_cpu ss ss_dur ss_ramp start_delay startdelay stats status-interval steadystate
    steadystate_duration steadystate_ramp_time sync sync_file_range terse-version thinktime thinktime_blocks
    thinktime_blocks_type thinktime_iotime thinktime_spin timeout trim_backlog trim_backlog_batch
    trim_percentage trim_verify_zero uid uncached unified_rw_reporting unique_filename unit_base unlink
    unlink_each_loop userspace_reap verify verify_async verify_backlog verify_backlog_batch verify_dump
    verify_fatal verify_interval verify_offset verify_pattern verify_state_load verify_state_save wait_for
    write_barrier write_bw_log write_hint write_hist_log write_iolog write_iops_log write_lat_log
    zone_reset_frequency zone_reset_threshold zonecapacity zonemode zonerange zonesize zoneskip \
";

//! Options that do not shape the load, and those that do in a way that has no counterpart.

/// Why an option may be accepted without a counterpart: it is named in the notes with this reason.
pub(super) fn harmless(key: &str) -> Option<&'static str> {
    let reason = match key {
        "description"
        | "group_reporting"
        | "new_group"
        | "per_job_logs"
        | "write_bw_log"
        | "write_lat_log"
        | "write_iops_log"
        | "write_hist_log"
        | "log_avg_msec"
        | "log_hist_msec"
        | "log_hist_coarseness"
        | "log_max_value"
        | "log_offset"
        | "log_unix_epoch"
        | "log_entries"
        | "log_prio"
        | "log_compression"
        | "log_store_compressed"
        | "bwavgtime"
        | "iopsavgtime"
        | "stats"
        | "clat_percentiles"
        | "lat_percentiles"
        | "slat_percentiles"
        | "percentile_list"
        | "significant_figures"
        | "disk_util"
        | "unified_rw_reporting"
        | "block_error_percentiles"
        | "error_dump"
        | "unit_base" => "changes only what fio reports",
        // Of the command line, not of a job.
        "output" | "output-format" | "minimal" | "append-terse" | "terse-version" | "eta"
        | "eta-interval" | "eta-newline" | "status-interval" | "bandwidth-log" | "idle-prof" | "aux-path"
        | "debug" => "says only how and where fio reports; Loadline's own report does not change",
        "alloc-size" | "max-jobs" | "warnings-fatal" => {
            "is a limit of fio's own program; it does not shape the load"
        }
        "thread"
        | "mem"
        | "iomem"
        | "cpus_allowed"
        | "cpumask"
        | "cpus_allowed_policy"
        | "numa_cpu_nodes"
        | "numa_mem_policy"
        | "nice"
        | "clocksource"
        | "gtod_reduce"
        | "gtod_cpu"
        | "disable_lat"
        | "disable_clat"
        | "disable_slat"
        | "disable_bw_measurement"
        | "disable_bw"
        | "lockmem"
        | "hugepage-size"
        | "registerfiles"
        | "fixedbufs"
        | "nonvectored"
        | "hipri"
        | "sqthread_poll"
        | "sqthread_poll_cpu"
        | "userspace_reap"
        | "force_async"
        | "uncached"
        | "random_generator" => {
            "is how fio uses processors, memory, clocks and the kernel; Loadline has its own way"
        }
        "create_serialize"
        | "create_fsync"
        | "create_on_open"
        | "fallocate"
        | "unlink"
        | "allow_file_create"
        | "allow_mounted_write"
        | "overwrite"
        | "openfiles"
        | "unique_filename"
        | "invalidate"
        | "fadvise_hint"
        | "end_fsync"
        | "fsync_on_close" => "acts before or after the load, or is a hint; it does not shape the load",
        "exitall" | "exit_what" | "exitall_on_error" | "ignore_error" | "continue_on_error" => {
            "is what fio does when a job ends or fails; Loadline counts errors and reports them"
        }
        "randrepeat" | "allrandrepeat" => {
            "is whether fio repeats its random numbers; give randseed for a seed"
        }
        "scramble_buffers" => "is how fio varies a reused buffer; Loadline writes new data each time",
        _ => return None,
    };
    Some(reason)
}

/// What to do about an option that shapes the load and has no counterpart.
pub(super) fn advice(key: &str) -> &'static str {
    match key {
        "bssplit" | "bsrange" | "bs_unaligned" | "blocksize_range" | "blocksize_unaligned" => {
            "Loadline issues one block size; write a job for each size, with bs"
        }
        "thinktime" | "thinktime_blocks" | "thinktime_spin" | "thinktime_iotime" => {
            "use rate_iops with rate_process=poisson for pauses between I/Os"
        }
        "iodepth_low"
        | "iodepth_batch"
        | "iodepth_batch_submit"
        | "iodepth_batch_complete"
        | "iodepth_batch_complete_min"
        | "iodepth_batch_complete_max"
        | "io_submit_mode"
        | "serialize_overlap" => "leave it out: Loadline replaces each I/O as it completes",
        "latency_target" | "latency_window" | "latency_percentile" | "latency_run" | "max_latency" => {
            "leave it out, and let a study find the load at a latency limit"
        }
        "steadystate" | "steadystate_duration" | "steadystate_ramp_time" | "ss" | "ss_dur" | "ss_ramp" => {
            "leave it out, and give a warm-up that is long enough"
        }
        "verify" | "do_verify" | "verify_pattern" | "verify_fatal" | "verify_dump" | "verify_async"
        | "verify_backlog" | "verify_interval" | "verify_offset" | "verify_only" => {
            "leave it out, and use Loadline's own verification"
        }
        "offset_increment" => "leave it out, or write a section for each part of the disk with its offset",
        "dedupe_percentage" | "dedupe_mode" | "buffer_compress_chunk" => {
            "choose random, compressible (buffer_compress_percentage) or zero data (zero_buffers)"
        }
        "read_iolog" | "write_iolog" | "replay_redirect" => {
            "Loadline makes its load from a profile, not from a trace"
        }
        "loops" | "number_ios" | "fill_device" | "fill_fs" => {
            "use time_based and runtime: Loadline measures for a time"
        }
        "startdelay" | "start_delay" | "wait_for" | "flow" => "leave it out, and order the steps in a study",
        "rate_min" | "rate_iops_min" | "rate_cycle" => {
            "leave it out: Loadline reports what was reached, and how late it was"
        }
        "parse-only" | "showcmd" | "section" => {
            "leave it out; `loadline profile show` explains a job without running it"
        }
        "nrfiles" | "opendir" | "filename_format" | "file_service_type" => "name the files with filename",
        _ => {
            "leave it out if it does not matter to the load; otherwise Loadline cannot run this job as it is"
        }
    }
}

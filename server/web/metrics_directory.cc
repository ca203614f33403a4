// Adds the metrics of a directory, and of what a holder keeps for it: members, corpora and copies;
// placed chunks; copies made; then the log, or the state that several directories share.

#include "server/web/metrics_directory.h"

#include <cstddef>
#include <memory>

namespace ckv {

void AddDirectory(DirectoryState& directory, MetricsPage& page) {
  size_t holders = 0, requesters = 0;
  for (const Member& member : directory.Members()) {
    ++(member.role == MemberRole::kHolder ? holders : requesters);
  }
  page.Family(
      MetricType::Gauge, "ckv_directory_members",
      "Members with a live lease. Fewer holders than were started: look for those missing.");
  page.Add({{"role", "holder"}}, static_cast<double>(holders));
  page.Add({{"role", "requester"}}, static_cast<double>(requesters));
  const DirectoryState::Counts counts = directory.counts();
  page.Gauge("ckv_directory_corpora", "Corpora published, of all tenants.", counts.corpus_count);
  page.Gauge("ckv_directory_placements", "Chunks placed, once a corpus that has them.",
             counts.placement_count);
  page.Gauge("ckv_directory_replicas", "Copies that members announced under their leases.",
             counts.replica_count);
  const HolderReports::Rebuilt rebuilt = directory.reports().rebuilt(0);
  page.Counter("ckv_directory_rebuilt_corpora_total",
               "Corpora made whole again from what holders reported.", rebuilt.rebuilt_count);
  page.Gauge(
      "ckv_directory_unproven_corpora",
      "Corpora that holders report and that are not served, because nothing proves that they "
      "are whole; ckvctl status names them.",
      rebuilt.unproven_count);
  const std::shared_ptr<const Coverage> covered = directory.health().Covered();
  page.Gauge("ckv_directory_missing_chunks",
             "Chunks of corpora that no live holder has: they can not be answered. ckvctl health "
             "names the corpora.",
             covered->missing_chunk_count);
  page.Gauge("ckv_directory_missing_copies",
             "Copies of chunks that corpora place and no live holder has; those of missing chunks "
             "are among them.",
             covered->missing_copy_count);
  const ReplicationFacts copies = directory.replication().Facts();
  page.Gauge("ckv_directory_under_replicated_chunks",
             "Chunks with fewer live copies than their corpora want.",
             copies.under_replicated_count);
  page.Gauge("ckv_directory_copy_bytes_left",
             "Bytes of the copies that the directory wants holders to make.", copies.bytes_left);
  page.Gauge("ckv_directory_copy_seconds_left",
             "Time until they are made, at the rate of the holders that make them.",
             static_cast<double>(copies.left.count()) / 1e9);
  page.Gauge("ckv_directory_stuck_copies",
             "Copies that cannot be made: no holder has room, or no live holder has the chunk. "
             "ckvctl health names one.",
             copies.stuck_count);
  page.Gauge(
      "ckv_directory_draining_holders",
      "Holders that ckvctl holder drain empties, or has emptied; until ckvctl holder undrain.",
      counts.draining_count);
  page.Gauge("ckv_directory_watchers", "Streams of changes that are open.", counts.watcher_count);
}

void AddPlacement(const PlacementKeeper& keeper, MetricsPage& page) {
  const PlacementKeeper::Stats stats = keeper.stats();
  page.Gauge("ckv_holder_corpus_parts",
             "Corpora whose places here are kept with the chunks, for a directory that loses its "
             "disk.",
             stats.part_count);
  page.Gauge("ckv_holder_placed_chunks", "Chunks that corpora place here.", stats.placed_count);
  page.Gauge(
      "ckv_holder_lacking_chunks",
      "Chunks that corpora place here and that are not here. Above 0: it restarted empty, or "
      "lost damaged chunks; load their corpora again.",
      stats.lacking_count);
  page.Gauge("ckv_holder_left_chunks",
             "Chunks that corpora placed here and do not any more; they are dropped after "
             "repair.drop_after.",
             stats.left_count);
  page.Counter("ckv_holder_left_chunks_dropped_total",
               "Chunks dropped because no corpus places them here any more.", stats.dropped_count);
  page.Gauge("ckv_holder_corpus_parts_behind",
             "If 1, the directory's last changes are not kept yet: it does not answer, is of an "
             "earlier build, or the disk is full. The log has the reason.",
             stats.last_error.ok() ? 0 : 1);
}

void AddCopies(const CopyMaker& maker, MetricsPage& page) {
  const CopyMaker::Stats stats = maker.stats();
  page.Counter("ckv_holder_copies_made_total",
               "Chunks copied from other holders, as the directory ordered.", stats.made_count);
  page.Counter("ckv_holder_copy_bytes_total", "Bytes of rows of these chunks.", stats.made_bytes);
  page.Counter("ckv_holder_copy_failures_total",
               "Ordered copies that failed. The directory orders them again; the log has the "
               "reason.",
               stats.failed_count);
  page.Gauge("ckv_holder_copy_orders", "Copies ordered from this holder and not made yet.",
             stats.waiting_count);
}

void AddDirectoryLog(const ChangeLog& log, MetricsPage& page) {
  const ChangeLog::Stats stats = log.stats();
  page.Gauge("ckv_directory_log_bytes",
             "Bytes of the log since the last snapshot. Above four times the snapshot for long: no "
             "snapshot can be written; the log has the reason.",
             stats.log_bytes);
  page.Gauge("ckv_directory_snapshot_bytes", "Bytes of the last snapshot. If 0, there is none yet.",
             stats.snapshot_bytes);
  page.Gauge("ckv_directory_snapshot_age_seconds",
             "Time since the last snapshot was written, or since the start.",
             static_cast<double>(stats.snapshot_age.count()) / 1e9);
  page.Counter("ckv_directory_snapshots_total", "Snapshots written.", stats.snapshot_count);
  page.Counter("ckv_directory_snapshot_failures_total",
               "Snapshots that could not be written. Any increase: look at the disk of "
               "directory.path. The log grows meanwhile.",
               stats.snapshot_failure_count);
  page.Counter("ckv_directory_log_changes_total",
               "Changes made durable: corpora published and dropped, and blocks of epochs.",
               stats.change_count);
  page.Counter("ckv_directory_log_syncs_total",
               "Syncs that made them durable; those that wait share one.", stats.sync_count);
  page.Counter("ckv_directory_log_failures_total",
               "Writes and syncs of the log that failed: their changes were refused. Any increase: "
               "look at the disk of directory.path.",
               stats.failure_count);
  page.Gauge("ckv_directory_log_replayed_records",
             "Records that the start read, those of the snapshot included.",
             log.replay().record_count);
}

void AddSharedDirectory(const EtcdDirectory& directory, MetricsPage& page) {
  const EtcdDirectory::Report report = directory.report();
  page.Gauge("ckv_directory_leads",
             "1 on the directory that leads. If the sum over all is 0 for more than 5 s: look at "
             "etcd, most of whose members must run.",
             report.leads ? 1 : 0);
  page.Counter("ckv_directory_leads_total",
               "How often it began to lead. Several in an hour: its machine or etcd is slow.",
               report.lead_count);
  page.Gauge("ckv_directory_etcd_revision",
             "The revision of etcd up to which it has everything. Behind the others' for long: the "
             "log has the reason.",
             static_cast<double>(report.revision));
  page.Counter("ckv_directory_etcd_changes_total", "Changes made durable since it leads.",
               report.journal.change_count);
  page.Counter("ckv_directory_etcd_refused_total",
               "Changes that were refused since it leads. Any increase: look at etcd's space.",
               report.journal.refused_count);
  page.Counter("ckv_directory_etcd_retries_total",
               "Writes that etcd did not answer in time, and that were tried again.",
               report.journal.retry_count);
}

}  // namespace ckv

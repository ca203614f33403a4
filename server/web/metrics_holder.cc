// Adds the metrics of a holder to a page, from one copy of its counters: traffic, refusals, state,
// store and latency, and then those of replicas. It reads counters without stopping their threads,
// so two metrics may differ by requests in progress.

#include "server/web/metrics_holder.h"

#include <cstddef>
#include <string>

namespace ckv {
namespace {

using Page = MetricsPage;

void AddHolderTraffic(const HolderStats& stats, Page& page) {
  page.Counter("ckv_holder_requests_total",
               "Frames received over lanes, of every kind: probes, too.", stats.request_count);
  page.Counter("ckv_holder_query_rows_total", "Query rows of the attends among them.",
               stats.query_row_count);
  page.Counter("ckv_holder_kernel_calls_total",
               "Calls of the attention kernel; requests that are ready together share one.",
               stats.batch_count);
  page.Counter("ckv_holder_compute_seconds_total",
               "Time that kernel calls took, those of other threads included. At a rate near 1 "
               "the polling thread does little else: the holder is full.",
               static_cast<double>(stats.compute_ns) / 1e9);
  page.Counter(
      "ckv_holder_long_requests_total",
      "Requests computed on other threads than the polling one, over 2^29 multiply-adds each.",
      stats.long_count);
  page.Counter("ckv_holder_pushes_total", "Replies to fetches that carried rows.",
               stats.push_count);
  page.Counter("ckv_holder_push_bytes_total", "Bytes of rows in them.", stats.push_bytes);
  page.Counter("ckv_holder_maps_total", "Chunks handed to requesters of this host to map.",
               stats.map_count);
  page.Counter("ckv_holder_scores_total", "Requests for scores of index keys answered.",
               stats.score_count);
  page.Counter("ckv_holder_scored_keys_total", "Index keys scored, for each token of a request.",
               stats.score_key_count);
  page.Counter("ckv_holder_received_bytes_total", "Bytes of frames received over lanes.",
               stats.bytes_in);
  page.Counter("ckv_holder_sent_bytes_total", "Bytes of frames sent over lanes.", stats.bytes_out);
  page.Counter("ckv_holder_sleeps_total",
               "Times the dispatcher had nothing to poll for and slept on its lanes' events.",
               stats.sleep_count);
}

void AddHolderRefusals(const HolderStats& stats, Page& page) {
  page.ByCode("ckv_holder_errors_total", "Requests answered with an error, by status code.",
              stats.errors);
  page.Family(MetricType::Counter, "ckv_holder_refusals_total",
              "Requests refused before any data was touched. queue_full, queue_work, no_time: "
              "overloaded, add holders or send less; no_lease: the directory was not reached for "
              "half a lease; stale_session: requesters open a new one by themselves.");
  for (size_t i = 0; i < stats.refusals.size(); ++i) {
    page.Add({{"reason", std::string(kRefusalNames[i])}}, static_cast<double>(stats.refusals[i]));
  }
  page.Counter("ckv_holder_expired_total",
               "Requests dropped because their deadline had passed: they waited too long, or were "
               "sent with too little time.",
               stats.expired_count);
  page.ByCode("ckv_holder_session_refusals_total",
              "Sessions that were not opened. FAILED_PRECONDITION: another model, revision or "
              "wire version asks; RESOURCE_EXHAUSTED: session_count_max or the lanes' memory; "
              "UNAVAILABLE: no lease, or no fabric that both sides have.",
              stats.session_refusals);
}

void AddHolderState(const HolderStats& stats, Page& page) {
  page.Family(MetricType::Gauge, "ckv_holder_queue_requests",
              "Requests that wait: attend, bulk (parts of large attends), long (computed on "
              "other threads), push (fetches and maps), cold (chunks read from the device).");
  for (size_t i = 0; i < stats.queues.size(); ++i) {
    page.Add({{"queue", std::string(kQueueNames[i])}}, stats.queues[i].request_count);
  }
  page.Family(MetricType::Gauge, "ckv_holder_queue_multiply_adds",
              "Work of the requests that wait, as estimated on arrival; pushes have none.");
  for (size_t i = 0; i < stats.queues.size(); ++i) {
    page.Add({{"queue", std::string(kQueueNames[i])}}, static_cast<double>(stats.queues[i].work));
  }
  page.Gauge("ckv_holder_sessions", "Sessions that are open; the limit is session_count_max.",
             stats.session_count);
  page.Family(MetricType::Gauge, "ckv_holder_lanes", "Lanes that are up, by fabric.");
  for (const FabricKind kind : kFabrics) {
    page.Add({{"fabric", std::string(FabricName(kind))}}, stats.lanes[static_cast<size_t>(kind)]);
  }
  const ChunkTableStats& table = stats.table;
  page.Gauge("ckv_holder_chunks", "Chunks held.", table.chunk_count);
  page.Gauge("ckv_holder_tokens", "Tokens of the chunks held.", table.token_count);
  page.Gauge("ckv_holder_pins", "Pins on chunks: requests that are reading now.", table.pin_count);
  page.Gauge(
      "ckv_holder_store_used_bytes",
      "Memory taken by rows. Near capacity, chunks become cold, or, without store.path, puts "
      "are refused.",
      table.used_bytes);
  page.Gauge("ckv_holder_store_capacity_bytes", "Memory for rows (store.capacity).",
             table.capacity_bytes);
}

void AddHolderStore(const HolderStats& stats, Page& page) {
  page.Gauge("ckv_holder_cold_chunks", "Chunks held on the device only.", stats.table.cold_count);
  page.Counter(
      "ckv_holder_cold_requests_total",
      "Requests that waited for the device: their chunks were cold. A high share of all: raise "
      "store.capacity, or add holders.",
      stats.cold_count);
  page.Counter(
      "ckv_holder_stripe_hits_total",
      "Stripes (32 rows) that selections needed of cold chunks and that earlier ones had read.",
      stats.stripe_hit_count);
  page.Counter(
      "ckv_holder_stripe_reads_total",
      "Stripes that selections needed of cold chunks and that were read from the device. Many "
      "with few hits: raise store.stripe_percent or store.capacity.",
      stats.stripe_read_count);
  page.Gauge("ckv_holder_stripe_bytes", "Memory taken by stripes that selections read.",
             stats.stripe_bytes);
  page.Gauge("ckv_holder_shadow_chunks",
             "Chunks held on the device only, with fp8 copies in memory.", stats.shadow_count);
  page.Counter("ckv_holder_approximate_requests_total",
               "Requests that allow an approximation and were answered from fp8 copies.",
               stats.approximate_count);
  page.Counter("ckv_holder_store_loads_total", "Cold chunks read into memory.", stats.load_count);
  page.Counter("ckv_holder_store_load_bytes_total", "Bytes of the rows of chunks read into memory.",
               stats.load_bytes);
  page.Counter("ckv_holder_store_evictions_total", "Hot chunks that became cold to make room.",
               stats.table.evicted_count);
  page.Counter("ckv_holder_store_damaged_total",
               "Chunks found damaged and taken out; a file is in quarantine/ with its reason. Any "
               "increase: look at the device, and at the memory's ECC counters.",
               stats.damaged_count);
  page.Counter("ckv_holder_store_healed_total",
               "Damage in memory or in a file that was repaired from the other one. Any increase: "
               "as for damaged.",
               stats.healed_count);
  page.Family(MetricType::Counter, "ckv_holder_store_errors_total",
              "Puts, reads and checks that the store or its device failed. Any increase: the log "
              "has the reason.");
  page.Add({{"of", "put"}}, static_cast<double>(stats.store_errors.put_count));
  page.Add({{"of", "read"}}, static_cast<double>(stats.store_errors.read_count));
  page.Add({{"of", "check"}}, static_cast<double>(stats.store_errors.check_count));
  page.Gauge("ckv_holder_store_fault",
             "If 1, the last put was refused and the next would be: there is no room. If 2, the "
             "device fails, or the store's folder is gone.",
             static_cast<int>(stats.store_errors.fault));
  page.Gauge("ckv_holder_store_unreadable_chunks",
             "Chunks that the device did not read at the last try.",
             stats.store_errors.unreadable_count);
  page.Counter("ckv_holder_store_unreadable_total",
               "Chunks that a check could not read: the device fails. They stay.",
               stats.scrub.unreadable_count);
  page.Counter("ckv_holder_store_repaired_total", "Damaged chunks got again from a replica.",
               stats.scrub.repaired_count);
  page.Counter(
      "ckv_holder_store_repair_failures_total",
      "Damaged chunks that no replica had: lost here. ckvctl corpus verify lists them; load "
      "their corpora again.",
      stats.scrub.repair_failure_count);
  page.Gauge("ckv_holder_store_repairs_pending", "Damaged chunks still tried for.",
             stats.scrub.repair_pending_count);
  page.Counter(
      "ckv_holder_store_scrubbed_bytes_total",
      "Bytes checked in the background, in memory and on the device. A rate of 0 for minutes: "
      "store.scrub_bytes_per_second is 0, or the device hangs.",
      stats.scrub.checked_bytes);
  page.Counter("ckv_holder_store_scrub_passes_total",
               "Times that the background check reached the last chunk.", stats.scrub.pass_count);
}

void AddHolderLatency(const HolderLatency& latency, Page& page) {
  page.Histogram("ckv_holder_kernel_seconds",
                 "Time of a batch's kernel calls, on whichever thread they run.");
  page.Add({}, latency.kernel);
  page.Histogram("ckv_holder_queue_wait_seconds",
                 "Time that requests waited before their turn: attend, from arrival to the kernel; "
                 "push, from arrival to the copying of rows. Longer than the kernel's: the holder "
                 "is full.");
  page.Add({{"kind", "attend"}}, latency.attend_wait);
  page.Add({{"kind", "push"}}, latency.push_wait);
  page.Histogram("ckv_holder_load_seconds",
                 "Time of reads from the device for one request whose chunks were cold.");
  page.Add({}, latency.cold_read);
}

}  // namespace

void AddHolder(Holder& holder, Instant now, MetricsPage& page) {
  const HolderStats stats = holder.stats();
  page.Gauge("ckv_holder_lease_live",
             "If 1, this holder may answer. If 0, it refuses every request; look at "
             "ckv_lease_failures_total and at the directory.",
             holder.lease().LiveAt(now) ? 1 : 0);
  AddHolderTraffic(stats, page);
  AddHolderRefusals(stats, page);
  AddHolderState(stats, page);
  AddHolderStore(stats, page);
  AddHolderLatency(stats.latency, page);
}

void AddLoad(const HolderLoad& load, MetricsPage& page) {
  page.Gauge(
      "ckv_holder_past_elbow",
      "If 1, attends wait for each other here: the directory orders leased copies of the hot "
      "chunks. If it stays 1, add holders, or place more copies.",
      load.is_past_elbow ? 1 : 0);
  page.Gauge("ckv_holder_elbow_attends",
             "Attends that a batch takes in about the time of one. 0 as long as it is not known, "
             "1000 if it is farther away.",
             load.elbow);
  page.Gauge("ckv_holder_batch_attends", "Attends in a batch of the last second, on average.",
             load.attends);
  page.Gauge("ckv_holder_busy_ratio", "Busy part of the last second, from 0 to 1.", load.busy_part);
}

void AddReplicas(const ReplicaStats& stats, MetricsPage& page) {
  page.Gauge("ckv_replicas_chunks", "Copies made here that this holder answers for.",
             stats.chunk_count);
  page.Gauge("ckv_replicas_bytes", "Memory of the store that copies take.", stats.bytes);
  page.Gauge("ckv_replicas_limit_bytes", "Most memory that copies may take (replicas.percent).",
             stats.bytes_max);
  page.Counter("ckv_replicas_fetched_total", "Chunks that were copied.", stats.fetched_count);
  page.Counter("ckv_replicas_fetched_bytes_total", "Bytes of their rows.", stats.fetched_bytes);
  page.Counter("ckv_replicas_evicted_total",
               "Copies dropped to make room for others. A rate near that of copies made: the limit "
               "is too small for what is requested.",
               stats.evicted_count);
  page.Counter("ckv_replicas_announce_failures_total",
               "Calls to announce copies that failed: the directory is away, or the lease is lost.",
               stats.announce_failure_count);
}

}  // namespace ckv

// A holder without its gRPC service: chunk store, sessions, lanes, and the dispatcher that answers.
//
//   CKV_ASSIGN_OR_RETURN(std::unique_ptr<Holder> holder,
//                        Holder::Start({.id = {"h1"}, .fabrics = {shm.get(), tcp.get()}}));
//   // `epoch` is the directory's; `until` is half of its lease from now (lease_gate.h).
//   holder->lease().Grant(epoch, until);  // from now on it answers; renew before `until`
//   // put chunks through holder->store(); requesters call OpenSession and post over their lanes
//   holder->Drain(deadline);
//
// tests/consumer/holder_example.cc is a complete program.
//
// Everything borrowed must outlive the holder.
//
// The holder's threads, and those that call into it:
//
//   thread        owns                        reads                       woken by
//   dispatcher    lanes, queues, batch,       LeaseGate, SessionTable,    events of lanes and
//                 pushes, copies for maps     chunks (pinned)             listeners; side thread
//                                                                         and reading, when done;
//                                                                         Wake; once a second
//   side thread   one long request or copy    its chunks (pinned)         a job (SideWork)
//   reading       one request's rows being    ChunkStore                  a job (ColdReads)
//                 read from disk
//   workers       a share of a kernel call    the batch's plan            a call of their pool
//   registration  the state of LeaseGate      the directory's answers     a third of the lease
//   expirer       one round of Expire         ChunkStore                  the daemon's tick
//   scrubber,     ScrubCounters               ChunkStore                  its own pace;
//   repairer                                                              a chunk that was lost
//   any caller    its call                    SessionTable, ChunkStore,   itself; it wakes the
//                                             counters                    dispatcher if need be
//
// The holder owns the first four; the daemon starts the others. The dispatcher and the side thread
// each have a pool of compute_threads - 1 workers.
//
// Without the daemon, the owner of the holder does its work. The owner renews the lease and calls
// store().Expire from time to time; without those calls, times to live never end. The owner also
// checks and repairs chunks (server/upkeep). A holder can be embedded inside this tree only,
// through the CMake target ckv_server_core. No install contains these headers.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "proto/ids.h"
#include "server/score/candidate_table.h"
#include "server/session/lease_gate.h"
#include "server/session/scrub_counters.h"
#include "server/session/serve_counters.h"
#include "store/chunk_store.h"
#include "transport/control.h"
#include "transport/fabric.h"

namespace ckv {

struct HolderOptions {
  HolderId id;                   // the name in log lines
  Clock* clock = Clock::Real();  // borrowed
  // Computes the answers; borrowed. It must reach host memory or pinned memory, which chunks and
  // lanes then use (HolderMemory in server/holder/backend_memory.h). With pinned memory, Start pins
  // all of capacity_bytes and, with store_path, room for ColdRowBytesMax bytes read from disk. Each
  // lane pins its slots. All this memory is occupied from then on, and stripe_bytes_max has no
  // effect.
  Backend* backend = Backend::Cpu();
  size_t capacity_bytes = size_t{1} << 30;  // memory for rows of chunks
  uint32_t chunk_count_max = 1u << 17;      // chunks in memory and on disk together
  // The folder that keeps chunks across restarts (store/disk/chunk_folder.h). If empty, chunks are
  // in memory only and are lost when the process ends.
  std::string store_path = {};
  FileSystem* store_files = FileSystem::Real();  // access to that folder; borrowed
  PagePolicy pages = PagePolicy::kAuto;          // the page size of the memory for rows
  // The part of capacity_bytes that may hold fp8 copies (shadows) of evicted chunks. Shadows answer
  // requests that allow an approximation. Zero disables them.
  uint64_t shadow_bytes_max = 0;
  // Threads that compute a batch, including the dispatcher. As many more, including the side
  // thread, compute a long request. A backend that is a device ignores this option.
  uint32_t compute_threads = 1;
  std::vector<Fabric*> fabrics;  // the fabrics that sessions may use, at least one; borrowed
  ListenOptions listen;          // their addresses; Start sets gather_regions
  uint32_t session_count_max = 256;
  // The memory for slots of all lanes of all sessions together. The default is 16 requesters of 16
  // lanes of the default shape (14 MB each).
  uint64_t lane_bytes_max = uint64_t{4} << 30;
  uint32_t batch_request_count_max = 64;  // requests that one batch computes together
  // Requests that may wait in each queue, over all sessions. Further requests are refused with a
  // hint when to retry, and so are requests that would wait too long (kQueueWorkMax in
  // server/dispatch/request_queues.h).
  uint32_t queue_request_count_max = 1024;
  // Memory for copies of chunks that requesters of this host map instead of fetching rows, in
  // addition to capacity_bytes. If unset, a sixteenth of capacity_bytes.
  std::optional<uint64_t> map_bytes_max;
  // Memory for stripes of chunks on disk that selections read, kept for later selections
  // (server/batch/stripe_cache.h). It is in addition to capacity_bytes. If unset, StripeBytesMax of
  // capacity_bytes; zero keeps none.
  std::optional<uint64_t> stripe_bytes_max;
  // The limit of memory for the candidates of score requests (server/score/candidate_table.h).
  uint64_t candidate_bytes_max = kCandidateBytesMax;
  // How long the dispatcher polls after its last work before it sleeps on the lanes' events
  // (transport/wait_policy.h). Zero disables polling.
  Duration spin_max = std::chrono::microseconds(50);
  // Receives the spans of attends whose trace is sampled (server/batch/batch_spans.h). Borrowed.
  // Times are those of `clock`. If null, no spans are made.
  SpanSink* spans = nullptr;
};

// The limits of the options of these names. Start refuses larger values.
inline constexpr uint32_t kChunkCountMax = 16'000'000;
inline constexpr uint32_t kSessionCountMax = 4096;
inline constexpr uint32_t kBatchRequestCountMax = 1024;
inline constexpr uint32_t kQueueRequestCountMax = 1u << 16;

// The time within which the lanes of an opened session must come up: three times a requester's
// connect_timeout of 3 s.
inline constexpr Duration kInvitationLifetime = std::chrono::seconds(9);

// Counters count from Start on; the other fields are current values. Each field is read separately,
// so two fields may differ by what happened between the reads.
struct HolderStats {
  ChunkTableStats table;       // chunks, bytes and pins of the store
  uint64_t load_count = 0;     // chunks read from disk into memory
  uint64_t load_bytes = 0;     // bytes of those chunks
  uint64_t healed_count = 0;   // chunks found damaged and restored from another copy in this holder
  uint64_t damaged_count = 0;  // chunks taken out of service because they were damaged
  uint64_t shadow_count = 0;   // evicted chunks that have an fp8 copy in memory now
  ScrubStats scrub;            // checks and repairs in the background
  StoreErrors store_errors;    // puts, reads and checks that failed

  uint32_t session_count = 0;                    // sessions open now
  uint32_t lane_count = 0;                       // lanes up now
  std::array<uint32_t, kFabricKindEnd> lanes{};  // the same by fabric; the index is a FabricKind
  StatusCounts session_refusals{};               // calls of OpenSession that failed, by status code

  // Frames of every kind received over lanes. They include about 90 probes of an explain and, at a
  // requester's first call, about 50 more for each fabric.
  uint64_t request_count = 0;
  uint64_t query_row_count = 0;  // query rows of attend requests that were taken into a batch
  uint64_t batch_count = 0;      // kernel calls; one takes all of a batch's pieces of equal shape
  uint64_t long_count = 0;       // requests computed on the side thread
  uint64_t push_count = 0;       // replies to fetches that carried rows
  uint64_t push_bytes = 0;       // bytes of those rows
  uint64_t map_count = 0;        // chunks passed to requesters by file descriptor
  uint64_t score_count = 0;      // score requests answered (transport/wire_score.h)
  uint64_t score_key_count = 0;  // index keys scored, for each token of a request
  uint64_t cold_count = 0;       // reads of chunks from disk for waiting requests
  // Stripes (32 rows) of chunks on disk that selections needed: those in memory from earlier
  // selections, and those that were read.
  uint64_t stripe_hit_count = 0;
  uint64_t stripe_read_count = 0;
  uint64_t stripe_bytes = 0;       // memory of the stripes kept now
  uint64_t approximate_count = 0;  // requests answered with the use of shadows
  uint64_t error_count = 0;        // requests answered with an error
  StatusCounts errors{};           // the same by status code
  uint64_t expired_count = 0;      // requests dropped because their deadline had passed
  uint64_t refused_count = 0;      // requests refused because a queue was full or too slow
  RefusalCounts refusals{};        // requests refused for any reason, by Refusal
  QueueDepths queues{};            // requests waiting now and their work, by QueueKind
  uint64_t sleep_count = 0;        // times the dispatcher had nothing to do and slept
  uint64_t bytes_in = 0;           // bytes of requests received over lanes
  uint64_t bytes_out = 0;          // bytes of replies posted over lanes
  uint64_t compute_ns = 0;         // time spent computing batches, without their waiting time
  HolderLatency latency;           // durations of the work, in buckets
};

// Thread-safe. A requester opens a session through HolderControl's calls. Its requests then arrive
// over the session's lanes and never through this class.
class Holder final : public HolderControl {
 public:
  // Opens the store, starts listening, and starts the dispatcher. Until lease() has been granted,
  // every session and request is refused as Unavailable (I4).
  //   InvalidArgument     an option is outside its limits.
  //   Unavailable         an address cannot be bound.
  //   Internal            the backend's device failed.
  //   ResourceExhausted   there is no memory for the store or in the backend, it cannot be pinned,
  //                       or no file descriptors are left.
  //   and ChunkStore::Open's errors.
  static absl::StatusOr<std::unique_ptr<Holder>> Start(const HolderOptions& options);
  // Stops immediately: lanes break, and waiting requests are not answered. Call Drain first to stop
  // gracefully.
  ~Holder() override;

  // See HolderControl. `deadline` is the caller's. After it, OpenSession opens no session.
  absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer, Instant deadline) override;
  absl::Status CloseSession(SessionId session, Instant deadline) override;
  absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
      SessionId session, std::span<const ChunkId> ids, Instant deadline) override;

  // The chunks. Put, mark and drop chunks through the store; use the table to pin and list them.
  // Chunks may be put before the lease is granted. store/memory/chunk_id.h computes their ids.
  ChunkStore& store();
  const ChunkTable& table() const;
  // The right to answer. The daemon's registration thread grants it. Without a directory, grant it
  // yourself, with any epoch that increases from start to start. The dispatcher reads it.
  LeaseGate& lease();

  // Returns the kernel target of its answers, which its member record reports.
  std::string_view kernel_target() const;

  // The counters that the scrubber and the repairer write and stats() reads.
  ScrubCounters& scrub_counters();

  // Refuses new sessions and requests (Unavailable) and answers those that have arrived. Returns
  // when no request is in flight, or at `deadline`. A drain cannot be undone: destroy the holder
  // next.
  void Drain(Instant deadline);

  // Returns how many iterations the dispatcher's loop has made, at least one per
  // Dispatcher::kSleepMax. If the count does not change for longer, the dispatcher hangs. Takes no
  // lock.
  uint64_t turn_count() const;

  // The sums of its batches since the start.
  BatchSums batch_sums() const;
  // Returns the ids of the chunks that were sampled since the last call (LoadSamples). Call from
  // one thread.
  std::vector<ChunkId> TakeSampledChunks();

  // Takes short locks and delays no request. May be called as often as metrics are read.
  HolderStats stats() const;

 private:
  absl::StatusOr<SessionAnswer> TryOpenSession(const SessionOffer& offer, Instant deadline);

  struct State;
  explicit Holder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckv

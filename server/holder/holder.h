// A holder without its gRPC face: chunk table, sessions, lanes, and the dispatcher that answers.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/control.h"
#include "proto/clock.h"
#include "proto/ids.h"
#include "server/lease_gate.h"
#include "server/scrub_counters.h"
#include "server/serve_counters.h"
#include "store/chunk_store.h"
#include "transport/fabric.h"

namespace ckv {

struct HolderOptions {
  HolderId id;
  Clock* clock = Clock::Real();
  size_t capacity_bytes = size_t{1} << 30;
  uint32_t chunk_count_max = 1u << 17;
  // Of the folder that keeps chunks over a restart (store/chunk_folder.h); empty: they are in
  // memory only, and gone with the process.
  std::string store_path = {};
  FileSystem* store_files = FileSystem::Real();  // borrowed
  PagePolicy pages = PagePolicy::kAuto;          // of that memory
  // Of capacity_bytes, at most this much for fp8 copies of evicted chunks: what allows an
  // approximation is answered from them. 0: none.
  uint64_t shadow_bytes_max = 0;
  uint32_t compute_threads = 1;  // of the dispatcher's worker pool, itself included
  std::vector<Fabric*> fabrics;  // that sessions may use; borrowed
  ListenOptions listen;
  uint32_t session_count_max = 256;
  // Slots of all lanes of all sessions: 16 requesters of 16 lanes of the default shape (14 MB
  // each).
  uint64_t lane_bytes_max = uint64_t{4} << 30;
  uint32_t batch_request_count_max = 64;  // requests of one kernel call
  // Requests that wait for their turn, over all sessions; more are refused with a hint when to come
  // back, and so is what waits too long (server/dispatcher.h: kQueueWorkMax).
  uint32_t queue_request_count_max = 1024;
  // Copies of chunks that requesters of this host map instead of fetching their rows. Beside
  // capacity_bytes. Absent: a sixteenth of it.
  std::optional<uint64_t> map_bytes_max;
  // How long the dispatcher polls after its last work before it sleeps on the lanes' events.
  Duration spin_max = std::chrono::microseconds(50);
};

// Limits of the above; Start refuses what is over them.
inline constexpr uint32_t kSessionCountMax = 4096;
inline constexpr uint32_t kBatchRequestCountMax = 1024;
inline constexpr uint32_t kQueueRequestCountMax = 1u << 16;

// How long the lanes of an opened session may take to come up: a requester's connect_timeout of
// 3 s, three times.
inline constexpr Duration kInvitationLife = std::chrono::seconds(9);

// A consistent-enough view: each counter is read on its own.
struct HolderStats {
  ChunkTableStats table;
  uint64_t load_count = 0;  // cold chunks read into memory
  uint64_t load_bytes = 0;
  uint64_t healed_count = 0;  // damage that another copy here made good
  ScrubStats scrub;
  uint32_t session_count = 0;
  uint32_t lane_count = 0;
  std::array<uint32_t, kFabricKindEnd> lanes{};  // of them, by FabricKind
  // Frames on the data plane since start, of every kind: an explain sends some 90 probes to a
  // holder that it has no constants of. The next counts the rows of attends alone.
  uint64_t request_count = 0;
  uint64_t query_row_count = 0;
  uint64_t batch_count = 0;         // kernel calls
  uint64_t long_count = 0;          // requests computed beside the polling thread
  uint64_t push_count = 0;          // replies to fetches
  uint64_t push_bytes = 0;          // of rows, in those replies
  uint64_t map_count = 0;           // chunks handed over
  uint64_t cold_count = 0;          // requests whose chunks were read from disk first
  uint64_t approximate_count = 0;   // requests answered from shadows
  uint64_t shadow_count = 0;        // evicted chunks that have one
  uint64_t damaged_count = 0;       // chunks taken out because they were damaged
  uint64_t error_count = 0;         // requests answered with an error
  StatusCounts errors{};            // the same, by code
  uint64_t expired_count = 0;       // of them, dropped because their deadline had passed
  uint64_t refused_count = 0;       // of them, refused because a queue was full
  RefusalCounts refusals{};         // those, and what was refused for another reason
  StatusCounts session_refusals{};  // OpenSession's errors, by code
  QueueDepths queues{};             // what waits now
  uint64_t sleep_count = 0;         // times the dispatcher's thread went to sleep
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t compute_ns = 0;
};

// Thread-safe. Owns one dispatcher thread, which polls every lane, batches what is ready, runs the
// kernel and answers; and one acceptor inside the same thread.
class Holder final : public HolderControl {
 public:
  // Starts listening and the dispatcher. Answers nothing until lease() has been granted (I4).
  //   InvalidArgument     an option outside its limits.
  //   Unavailable         an address that cannot be bound.
  //   ResourceExhausted   no memory for the store.
  static absl::StatusOr<std::unique_ptr<Holder>> Start(const HolderOptions& options);
  // Stops at once: lanes break, sessions end. Drain first to be graceful.
  ~Holder() override;

  absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer, Instant deadline) override;
  absl::Status CloseSession(SessionId session, Instant deadline) override;
  absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
      SessionId session, std::span<const ChunkId> ids, Instant deadline) override;

  // Puts, marks and drops go to the store; what is in memory only, pins and lists to its table.
  ChunkStore& store();
  ChunkTable& table();
  // The directory's grant: the registration thread writes it, the dispatcher reads it.
  LeaseGate& lease();

  // Of those who check the store and repair it; they write them.
  ScrubCounters& scrub_counters();

  // Refuses new sessions and requests (Unavailable), answers what has arrived, and returns when
  // nothing is in flight or at `deadline`.
  void Drain(Instant deadline);

  HolderStats stats() const;

 private:
  absl::StatusOr<SessionAnswer> TryOpenSession(const SessionOffer& offer, Instant deadline);

  struct State;
  explicit Holder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckv

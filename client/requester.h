// The requester: resolves chunks, routes query rows to their holders, merges the partials exactly.
//
//   ckv::Clock* clock = ckv::Clock::Real();
//   ckv::DirectoryStub directory("127.0.0.1:7400", clock);  // client/directory_stub.h
//   ckv::HolderStubFactory holders(clock);                  // client/holder_stub.h
//   ckv::RequesterOptions options;
//   options.id = "engine-0";
//   CKV_ASSIGN_OR_RETURN(auto requester, ckv::Requester::Create(options, &directory, &holders));
//
//   const ckv::Instant deadline = clock->Now() + std::chrono::seconds(1);
//   CKV_ASSIGN_OR_RETURN(auto corpus, requester->Resolve("gpl", /*tenant=*/"", deadline));
//   const ckv::Geometry& g = corpus->geometry;
//   std::vector<uint16_t> q(rows * g.d_qk);  // bf16, absorbed into the latent space
//   std::vector<float> o(rows * g.d_v), m(rows), l(rows);
//   ckv::AttendCall call;
//   call.corpus = corpus;
//   call.layer = 3;
//   call.q = {q.data(), rows, g.d_qk};
//   call.deadline = deadline;
//   CKV_RETURN_IF_ERROR(requester->Attend(
//       call, {o.data(), m.data(), l.data(), ckv::PartialDtype::kF32}, /*report=*/nullptr));
//
// The two stubs speak gRPC (CMake target ckv_client_grpc). The requester itself (ckv_client) knows
// only the interfaces of client/control.h, so an engine with another directory implements those.
//
// Attend always routes and Fetch always fetches: the decision between them is its caller's, and
// Explain is what to base it on.
//
// Thread-safe: each calling thread takes one of engine_count_max engines for the length of a call.
// An engine owns its lanes to every holder, so calls on different threads share no lane and no lock
// but the short one of taking an engine.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/control.h"
#include "client/predicate.h"
#include "client/what_if.h"
#include "proto/clock.h"
#include "proto/corpus.h"
#include "transport/fabric.h"

namespace ckv {

struct CacheSequenceId;  // client/paged_cache.h
class PagedCache;
class NetworkOracle;  // client/network_oracle.h
struct Profile;       // client/profile_file.h
struct MappedLayout;  // transport/wire.h

// What a lane that should go by RDMA, and cannot, becomes.
enum class RdmaFallback : uint8_t {
  kRefuse,  // none: the call is Unavailable
  kTcp,     // one of tcp, which is logged, counted and shown
};

struct RequesterOptions {
  std::string id = "requester";
  Clock* clock = Clock::Real();
  // Borrowed; empty: shm for peers on this host, and tcp. Of those that a holder has as well, the
  // one that a probe finds the fastest is taken; the order decides where it finds no difference.
  std::vector<Fabric*> fabrics;
  // One of them, for every holder; absent: the fastest.
  std::optional<FabricKind> fabric;
  // Where verbs is among `fabrics`, the holder has it too, no lane of it comes up, and of the
  // others tcp would be taken.
  RdmaFallback rdma_fallback = RdmaFallback::kRefuse;
  LaneShape lane_shape;
  uint32_t engine_count_max = 16;  // calls in progress at once; more wait, until their deadline
  // Polls for so long before it sleeps on the lanes' events, and through waits of up to
  // 2 ms that are like the last two (transport/wait_policy.h). Zero: never polls.
  Duration spin_max = std::chrono::microseconds(50);
  Duration connect_timeout = std::chrono::seconds(3);
  // What the network costs, for Explain: borrowed, and must outlive the requester; null: what is
  // measured alone counts.
  NetworkOracle* oracle = nullptr;
  // Of `ckvctl calibrate`, for Explain (ReadProfile, client/profile_file.h): this requester's own
  // constants instead of those it would measure, prefill among them; of the holders that it names,
  // over the fabric that each is spoken to, pull bandwidth and compute. Used for corpora of the
  // geometry and on the host that its subject names, by WhyNotOf; else ignored, which is logged
  // once at warning. Null: none.
  std::shared_ptr<const Profile> profile;
};

// One chunk of a call: which, and how far from its canonical position it stands in this request's
// context. The queries are rotated by -offset for it; chunks of equal offset share one copy.
struct ChunkUse {
  uint32_t ordinal = 0;  // in the corpus
  int64_t offset = 0;
};

// Borrows everything it points to for the length of the call.
struct AttendCall {
  std::shared_ptr<const Corpus> corpus;
  // Empty: every chunk of the corpus, at canonical positions. A chunk twice is InvalidArgument.
  std::span<const ChunkUse> chunks;
  uint32_t layer = 0;
  QueryView q;          // bf16 [count, d_qk], count <= kAttendRowCountMax
  Selection selection;  // indices count the rows of `chunks`, one after another in their order
  // What crosses the wire. f32 partials where exact equality is promised.
  PartialDtype wire = PartialDtype::kBf16;
  // Merge here, chunk by chunk in the order of the call: the answer's bits do not depend on which
  // holder has which chunk. Costs one partial a chunk on the wire instead of one a holder.
  bool per_chunk = false;
  // A holder whose exact rows are on disk may answer from fp8 copies in memory, where it has them;
  // the report says whether one did. Otherwise an answer is exact or an error.
  bool allow_approximate = false;
  Instant deadline = kInstantMax;
};

// Gives an AttendCall the place of its answer: f32 o [q.count, d_v], m, l.
using AttendRoom = absl::FunctionRef<PartialView()>;

inline constexpr uint32_t kAttendRowCountMax = 1u << 16;

struct AttendReport {
  uint32_t holder_count = 0;
  uint64_t bytes_sent = 0;  // frames on the lanes, both headers and rows
  uint64_t bytes_received = 0;
  uint64_t compute_ns_max = 0;  // kernel time of the slowest holder
  bool approximate = false;     // some rows were fp8 copies; only if the call allows it
  Duration elapsed{0};
};

// Bytes [begin, begin + bytes) of every row, both multiples of 4: the heads of a tensor-parallel
// rank. Holders gather slices before they send them, so there are as many transfers as the bytes
// need, whatever the number of heads and layers.
struct ColumnRange {
  uint32_t begin = 0;
  uint32_t bytes = 0;  // 0, with a begin of 0: whole rows
};

// Ranges are half open, [begin, end), and not empty; an end of 0 is no "to the end" here (it is in
// the gRPC messages): corpus->chunks.size() and corpus->geometry.layers are the ends.
struct FetchCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  uint32_t layer_begin = 0;
  uint32_t layer_end = 0;
  // Where the first chunk's first token is to stand: bands are rotated by the difference. Absent:
  // canonical.
  std::optional<uint64_t> position;
  // What of each row. With a position, all of the RoPE band or nothing of it.
  ColumnRange columns;
  Instant deadline = kInstantMax;
};

// Rows chosen by index, an indexer's choice: they come as they stand, at their canonical positions,
// and are never rotated, for they have no offset in common.
struct SelectionCall {
  std::shared_ptr<const Corpus> corpus;
  // Indices count the rows of these chunks, one after another. The range is not empty.
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  // indices[i] are those of layer layer_begin + i, in any order, an index as often as it is wanted;
  // may be empty. At most kSelectionIndexCountMax (2^24) in all.
  uint32_t layer_begin = 0;
  std::span<const std::span<const int32_t>> indices;
  ColumnRange columns;
  Instant deadline = kInstantMax;
};
// Rows of one layer, of one chunk: rows[i] is that of the layer's index number ordinals[i].
struct SelectedRows {
  uint32_t layer = 0;
  uint32_t chunk = 0;
  std::span<const uint32_t> ordinals;  // rising; borrowed for the call of the sink
  std::span<const std::byte> rows;     // [ordinals.size()][row_bytes or columns.bytes]; borrowed
};

// Rows of one layer of one chunk, in order of tokens.
struct RowRun {
  uint32_t chunk = 0;  // ordinal in the corpus
  uint32_t layer = 0;
  uint32_t token_begin = 0;
  uint32_t token_count = 0;
};
struct FetchedRows : RowRun {
  // [token_count][row_bytes, or columns.bytes]; borrowed for the call of the sink
  std::span<const std::byte> rows;
};

struct FetchIntoReport {
  uint64_t rows_spliced = 0;  // of all layers; what came twice counts twice
  uint32_t reopen_count = 0;  // attempts after the first, but for those that a replica went on with
  Duration elapsed{0};
};

// What Explain is asked of: chunks [chunk_begin, chunk_end) of the corpus, a range as in FetchCall.
struct ExplainCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk_begin = 0;
  uint32_t chunk_end = 0;
  uint32_t query_rows = 0;  // M_q of one request: tokens x heads
  uint32_t steps = 1;       // 0 is 1
  uint32_t agents = 1;      // that share the chunks here; 0 is 1
  uint32_t select = 0;      // rows a query attends; 0: all
  PartialDtype wire = PartialDtype::kBf16;
  std::optional<uint64_t> cache_room_tokens;  // in the engine's cache; absent: the chunks fit
  Instant deadline = kInstantMax;
};

struct MapCall {
  std::shared_ptr<const Corpus> corpus;
  uint32_t chunk = 0;  // ordinal in the corpus
  Instant deadline = kInstantMax;
};

// A chunk's rows in the memory of its holder, mapped read-only: nothing was copied, and nobody
// writes them or takes them away any more, whatever becomes of the holder or of the requester. The
// memory stays taken until this is destroyed. Rows are at their canonical positions.
class MappedChunk {
 public:
  MappedChunk() = default;  // of no layers
  MappedChunk(MappedChunk&& other) noexcept;
  MappedChunk& operator=(MappedChunk&& other) noexcept;
  ~MappedChunk();

  // [token_count][row_bytes], 64-byte aligned, as long as this lives. l < geometry.layers.
  std::span<const std::byte> layer(uint32_t l) const;
  uint32_t token_count() const { return token_count_; }

 private:
  friend absl::StatusOr<MappedChunk> MapDescriptor(int fd, const MappedLayout& layout,
                                                   const Geometry& geometry, uint32_t chunk_tokens);
  std::span<const std::byte> memory_;  // ours
  uint64_t layer_bytes_ = 0;
  uint64_t layer_stride_ = 0;
  uint32_t layers_ = 0;
  uint32_t token_count_ = 0;
};

// A fabric to a holder as it was found when this requester last chose among them.
struct FabricTrial {
  FabricKind fabric = FabricKind::kTcp;
  // 0: not measured, or a bandwidth beyond what the probe could tell. Where full slots did not come
  // through in time, the bandwidth is what that would have needed.
  FabricConstants constants;
  // Predicted for kNominalExchangeBytes (client/fabric_choice.h): of the second best round trip, as
  // the constants are, and of the median one. 0: not measured.
  double exchange_us = 0;
  double exchange_p50_us = 0;
  std::string why_not;  // no lane of it could be had; empty: one could, and was probed
};

// One holder as this requester sees it.
struct HolderView {
  Member member;  // but for its id as of the last connection; empty before the first
  // It is a member of the directory, some engine has a lane to it, and no engine found one broken
  // since the last came up. A holder that died a moment ago may still look connected: until its
  // lease runs out or a lane is next used.
  bool connected = false;
  FabricKind fabric = FabricKind::kTcp;  // of the last lane that came up
  FabricConstants constants;             // as last measured, which may be long ago; 0: never
  uint32_t in_flight = 0;                // requests posted and not answered, over all engines
  uint32_t lane_count = 0;               // that are open, over all engines
  // Those that were chosen among, in order of preference; empty: there was no choice.
  std::vector<FabricTrial> trials;
  std::string fallback;  // why it is tcp where it should be verbs; empty: it is not so
  // How far the cost model is off lately: the median of |measured / predicted - 1| over the last 64
  // dense calls that were one frame and under way alone, from post to answer. Absent before 16, and
  // while its fabric was never probed or nothing is known of its kernel's time.
  std::optional<double> model_error;
};

// Counted since the requester was made, over all engines.
struct RequesterStats {
  uint64_t discarded_reply_count = 0;  // that nobody waited for (I1)
  uint64_t rdma_fallback_count = 0;    // lanes of tcp that should have been of verbs
  uint64_t retry_count = 0;            // that overloaded holders asked for, and that were made
  uint64_t retry_refused_count = 0;    // that were not, for want of a budget (client/retry.h)
  uint64_t failover_count = 0;         // times a call was made again with another replica
};

class Requester {
 public:
  // `directory` and `holders` must outlive the requester. Does not touch the network.
  //   InvalidArgument     an option outside its limits.
  static absl::StatusOr<std::unique_ptr<Requester>> Create(const RequesterOptions& options,
                                                           DirectoryControl* directory,
                                                           HolderControlFactory* holders);
  ~Requester();
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  // The corpus as the directory knows it. An immutable snapshot, cached until Forget or until a
  // holder says that it is stale.
  //   NotFound            no such corpus for this tenant.
  //   Unavailable         the directory does not answer and nothing is cached.
  absl::StatusOr<std::shared_ptr<const Corpus>> Resolve(std::string_view name,
                                                        std::string_view tenant, Instant deadline);
  // A corpus made of these chunks, wherever they are, for callers that know ids only.
  //   NotFound            one that nobody holds; says which.
  //   FailedPrecondition  they are of different geometries, or not of `geometry`.
  absl::StatusOr<std::shared_ptr<const Corpus>> ResolveChunks(std::span<const ChunkId> ids,
                                                              const Geometry& geometry,
                                                              std::string_view tenant,
                                                              Instant deadline);
  // The directory changed: the next Resolve asks it. An empty name forgets everything.
  void Forget(std::string_view name);

  // Routes the rows to a holder of each chunk and merges what comes back, in a fixed order. Of
  // replicas the cheapest is asked (client/replica_choice.h); where it fails, another, which gives
  // the same bits if its kernel is the same.
  // Writes `out` (f32 o [q.count, d_v], m, l) only when every chunk has answered exactly once (I1).
  //   InvalidArgument     widths, counts, layer, a chunk twice; nothing was sent.
  //   NotFound            a holder no longer has a chunk; the corpus was forgotten: Resolve again.
  //   Unavailable         a holder is gone, and so are all replicas of what it holds. Its lanes are
  //                       reopened by the next call, and the next Resolve asks the directory
  //                       whether the corpus is elsewhere now.
  //   ResourceExhausted   a holder or this requester is overloaded. Where a holder said when to
  //                       come again, twice was not enough, or the deadline, or the budget of
  //                       retries; RetryAfterOf (client/retry.h) reads its hint, which ends the
  //                       text.
  //   DeadlineExceeded
  //   FailedPrecondition  geometry or wire version differ; retrying cannot help.
  absl::Status Attend(const AttendCall& call, const PartialView& out, AttendReport* report);
  // The same where making room for the answer takes time: `room` is called when the queries are
  // under way, so that the holders compute meanwhile, and may be called again, for the same room.
  absl::Status Attend(const AttendCall& call, AttendRoom room, AttendReport* report);

  // Pulls rows; `sink` is called as they come, and its error ends the call. Every run is checked
  // against its checksum before it is shown.
  // Errors as Attend, and DataLoss.
  absl::Status Fetch(const FetchCall& call,
                     absl::FunctionRef<absl::Status(const FetchedRows&)> sink);

  // The same, into memory of the caller's: `place` says where each run shall lie, token_count x
  // row_bytes bytes at an even address, and `sink` is shown it there. Runs are asked for in no
  // order, and again where a call is tried again; no two may share a byte. Saves a copy where the
  // fabric can write there itself (tcp). Until it has been shown a run's bytes are anything, also
  // after an error; once the call has returned nothing writes there any more.
  //   InvalidArgument     also: a place of another size.
  absl::Status Fetch(const FetchCall& call,
                     absl::FunctionRef<std::span<std::byte>(const RowRun&)> place,
                     absl::FunctionRef<absl::Status(const FetchedRows&)> sink);

  // Fetches exactly the chosen rows. `sink` gets them layer by layer, of each layer chunk by chunk,
  // of each chunk in the order of the indices; never rotated. Holders gather what one reply
  // carries, so that choosing apart costs no more transfers than choosing neighbours.
  //   InvalidArgument     the call: an index that is negative or beyond the chunks (nothing is sent
  //                       then), a range, columns.
  //   the sink's error    which ends the call.
  //   else as Fetch.
  absl::Status FetchSelection(const SelectionCall& call,
                              absl::FunctionRef<absl::Status(const SelectedRows&)> sink);
  // The same into memory: `place(layer)` is where the rows of a layer go, [indices of the layer]
  // [row_bytes or columns.bytes], in the order of its indices.
  //   InvalidArgument     also: a place of another size.
  absl::Status FetchSelection(const SelectionCall& call,
                              absl::FunctionRef<std::span<std::byte>(uint32_t layer)> place);

  // Fetches the rows of whole chunks to the end of a sequence of `cache`, rotated to call.position
  // (absent: canonical), and shows them once all are there. What has come is spliced while the rest
  // is under way. A lane that breaks is opened anew, and the fetch goes on at the first layer that
  // is not whole: only that layer's rows come twice. kReopenCountMax such attempts in a row may
  // bring no layer to its end, and none is begun after the deadline. call.layer_begin and layer_end
  // are the cache's.
  //
  // On any error the cache is as it was, and the message names the blocks, and the chunk and layer
  // that was not whole. The sequence is taken for the length of the call; others of the cache are
  // not in its way.
  //   InvalidArgument     the call, layers other than the cache's, or columns.
  //   FailedPrecondition  another geometry than the cache's; the sequence is being extended by
  //                       another thread; or as Attend.
  //   ResourceExhausted   too few free blocks; or as Attend.
  //   NotFound            no such sequence; or as Attend.
  //   DataLoss            what came does not match its checksum.
  //   Unavailable         kReopenCountMax attempts brought nothing more.
  //   else as Attend.
  absl::Status FetchInto(const FetchCall& call, PagedCache& cache, CacheSequenceId sequence,
                         FetchIntoReport* report = nullptr);

  // Maps a whole chunk of a holder on this host. Its rows are not checked against their checksums:
  // they are the holder's own, where Fetch's have travelled.
  //   Unimplemented       the holder is not spoken to over shm, or does not pass chunks: fetch its
  //                       rows instead.
  //   InvalidArgument     the call, or what the holder passed: not sealed, or of another size.
  //   ResourceExhausted   also: this process can map no more.
  //   else as Attend.
  absl::StatusOr<MappedChunk> Map(const MapCall& call);

  // What the predicate says of these chunks: which primitive would be cheapest, and why. Nothing is
  // done about it. Asks the directory who is a member, sends every holder of the chunks one echo,
  // and probes those whose constants are not known or a minute old (about 90 frames, and a few
  // one-row attends the first time). All replicas are candidates; one that does not answer is left
  // out. Where RequesterOptions::oracle knows the way to one, that counts too. Chunks that no
  // member holds are offered neither route nor fetch; `local` is offered only where input.here has
  // the cost of prefill, which only RequesterOptions::profile gives.
  struct Explanation {
    DecisionInput input;
    std::vector<HolderId> holders;  // of input.candidates, one each
    Decision decision;              // no choice: nothing is offered, and each cost says why_not
    std::vector<Flip> flips;        // what would change it
    std::array<double, kKnobCount> sensitivities{};
    std::string summary;  // DescribeDecision, one line
  };
  //   InvalidArgument     no corpus, an empty range or one past the end, query_rows not 1 to
  //                       kAttendRowCountMax.
  //   Unavailable         no replica answers, or its bandwidth cannot be told.
  //   ResourceExhausted   a holder has no session left, or too many calls wait here.
  //   NotFound, DeadlineExceeded, FailedPrecondition  as Attend.
  absl::StatusOr<Explanation> Explain(const ExplainCall& call);

  // Every holder that a corpus used here ever named, in the order of ids: for people and metrics.
  // Asks the directory who is a member, for a second at most; while it does not answer, members
  // are as they were last known.
  std::vector<HolderView> Holders() const;
  // The same without asking: who is a member is as Holders or Explain last found it.
  std::vector<HolderView> KnownHolders() const;

  RequesterStats Stats() const;

 private:
  struct State;
  explicit Requester(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckv

// The requester: resolves chunks, routes query rows to their holders, merges the partials exactly.
//
//   #include "client/grpc/directory_stub.h"
//   #include "client/grpc/holder_stub.h"
//   #include "client/requester.h"
//   #include "proto/base/status.h"  // CKV_ASSIGN_OR_RETURN, CKV_RETURN_IF_ERROR
//
//   ckv::Clock* clock = ckv::Clock::Real();
//   ckv::DirectoryStub directory("127.0.0.1:7400", clock);
//   ckv::HolderStubFactory holders(clock);
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
// A row of q is one head of one token: first its d_qk - d_rope values, absorbed into the latent
// space. Then come d_rope values, rotated to the query's own position in this request's context.
// The holder applies geometry.softmax_scale. Every row sees every token of the chunks, unless a
// call has RowLimits (client/calls.h).
//
// The answer is one partial over all chunks (attention/partial.h). An engine that decodes opens a
// Context for each sequence (client/context/context.h) and makes one LayerCall a layer for all of
// them. It hands the sequences' own rows along, which are attended here and merged into the answer.
//
// The two stubs speak gRPC (CMake target ckv::client_grpc). The requester itself (ckv::client)
// knows only the interfaces of client/holders/control.h. An engine with a directory of its own
// implements those. The structs of calls and reports are in client/calls.h, which this file
// includes. A WatchStub (client/grpc/watch_stub.h) tells when to call Forget and Learn.
//
// ckv installs no signal handlers and no alternate signal stacks. On a processor with AMX it asks
// Linux for the tile registers, once, in Create at the latest. A signal's frame then takes 12 KB
// instead of 3. So an engine that calls sigaltstack gives each stack getauxval(AT_MINSIGSTKSZ)
// bytes and its handler's own room beside. A smaller one that is there before Create makes Linux
// refuse AMX; kernels then use vector instructions. After Create, sigaltstack fails with ENOMEM.

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
#include "attention/backend.h"
#include "attention/partial.h"
#include "client/call/ticket.h"
#include "client/calls.h"
#include "client/context/context.h"
#include "client/decide/explanation.h"
#include "client/decide/quote.h"
#include "client/holders/control.h"
#include "client/holders/holder_view.h"
#include "client/holders/host_cache.h"
#include "client/prompt/prompt_cover.h"
#include "client/requester_stats.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "proto/corpus.h"
#include "proto/ids.h"
#include "transport/fabric.h"

namespace ckv {

struct RequesterOptions;  // below, after the class
struct CacheSequenceId;   // client/cache/paged_cache.h
class NearSource;         // client/near/near_rows.h
class PagedCache;
class NetworkOracle;  // client/decide/network_oracle.h
struct Profile;       // client/decide/profile_file.h

// A client of the holders that one directory knows. One per process is enough: it keeps sessions,
// snapshots of corpora and constants, and shares them between calls.
//
// Attend always routes and Fetch always fetches. The caller decides between them; Explain says
// which costs less.
//
// Threads: every method may be called from any thread at any time. Calls block. A call runs on its
// caller's thread, and so do its callbacks (sinks, places and rooms). It takes one of
// call_count_max call contexts from its beginning to its end. A context has lanes of its own to
// each holder. Calls on different threads share no lane, and no lock but the short one of taking a
// context.
//
// Lifetime: the directory, the factory of holder stubs, and everything that RequesterOptions
// borrows must outlive the requester. A call borrows its arguments until it returns. Corpora and
// mapped chunks may outlive the requester. The caller owns all memory that it passes.
//
// Deadlines and retries: no call begins anything after its deadline. Within it, a call cures what
// it can itself: it opens a failed session again, asks another replica, and waits as overloaded
// holders ask. If no holder of a chunk answers, it waits until one does or the deadline is near;
// without a deadline, for kReturnWaitMax (10 s). So give calls a deadline. Explain and Quote do not
// wait: they describe the current state of holders. The limits are in client/call/attempts.h. An
// error means that these attempts failed, and names the causes. NextActFor (proto/base/status.h)
// maps every error to what the caller should do next.
//
// These errors mean the same in every call that asks holders:
//   InvalidArgument     the call is not valid: a range, count, width or index. Nothing was sent.
//   NotFound            a holder no longer has a chunk. The corpus is forgotten; Resolve it again.
//   Unavailable         a holder cannot be reached, and neither can a replica of what it holds. The
//                       call has already tried a new session and the replicas. The next
//                       Resolve asks the directory where the corpus is now.
//   ResourceExhausted   a holder is overloaded and asked to come back later, more often or for
//                       longer than the limits on retries allow. The text ends with the holder's
//                       hint, which RetryAfterOf (client/holders/retry.h) reads. Or too many calls
//                       wait for a context here.
//   DeadlineExceeded    a holder did not answer in time, or no context became free in time.
//   FailedPrecondition  the geometry or the wire version differs. The call has already asked the
//                       replicas. A retry cannot help.
class Requester {
 public:
  // Makes a requester. Does not touch the network.
  //   InvalidArgument     an option is outside its limits, or `directory` or `holders` is null.
  static absl::StatusOr<std::unique_ptr<Requester>> Create(const RequesterOptions& options,
                                                           DirectoryControl* directory,
                                                           HolderControlFactory* holders);
  // Closes all lanes and sessions. No call may be in progress.
  ~Requester();
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  // Returns the corpus of this name as the directory knows it: an immutable snapshot. It is kept
  // until Forget, or until a holder's answer shows that it is stale. `tenant` is the tenant on
  // whose behalf calls over this corpus read; "" is the shared tenant.
  //   NotFound            there is no such corpus for this tenant.
  //   Unavailable         the directory does not answer and nothing is kept.
  //   InvalidArgument     the directory's answer is not a corpus.
  absl::StatusOr<std::shared_ptr<const Corpus>> Resolve(std::string_view name,
                                                        std::string_view tenant, Instant deadline);
  // Returns the corpus of this name if it is kept, so that Resolve would not ask the directory.
  // Returns null if it is not.
  std::shared_ptr<const Corpus> Kept(std::string_view name, std::string_view tenant) const;
  // Returns a corpus without a name, made of these chunks in this order. For callers that know
  // chunk ids only. The directory says which holders have them.
  //   InvalidArgument     there are no ids, or more than kCorpusChunkCountMax.
  //   NotFound            nobody holds one of them; says which.
  //   FailedPrecondition  a chunk is known, but only with another geometry than `geometry`.
  absl::StatusOr<std::shared_ptr<const Corpus>> ResolveChunks(std::span<const ChunkId> ids,
                                                              const Geometry& geometry,
                                                              std::string_view tenant,
                                                              Instant deadline);
  // Returns the key by which ids of the tenant's chunks are made (store/memory/chunk_id.h). The
  // zero key says that they are plain. A key is kept. After Forget with an empty name it is asked
  // for anew, and the kept one counts if the directory does not answer.
  //   Unavailable         the directory does not answer.
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant deadline);
  // Returns the chunks that a prompt has, of all corpora that the tenant may read, and the tokens
  // between them (client/prompt/prompt_cover.h). ResolveChunks takes the ids, and calls take the
  // offsets. Nothing is kept.
  //   InvalidArgument     too many tokens, or chunks of several models are found.
  //   Unavailable         the directory does not answer.
  //   Unimplemented       the directory is of an earlier build.
  absl::StatusOr<PromptCover> CoverPrompt(const PromptCall& call);
  // Drops the snapshots of this name. Call it when the directory changed; the next Resolve then
  // asks the directory. If `name` is empty, drops everything. Snapshots in use stay valid.
  //
  // A WatchStub (client/grpc/watch_stub.h) tells an engine of changes. It follows the directory.
  // Its OnChange passes a name for Forget, and its OnMember passes a member for Learn.
  void Forget(std::string_view name);
  // Call it when the directory says that this member is up. If it is a holder in a later epoch than
  // its sessions, the sessions are dropped before they are used again. Without this call the next
  // calls find out themselves, one attempt each.
  void Learn(const Member& member);

  // Attends query rows over chunks, by routing them: asks one holder of each chunk and merges the
  // partials in a fixed order. Writes `out` only once every chunk has answered exactly once (I1);
  // after an error `out` is as it was. `out` takes f32: o [q.count, d_v], m and l [q.count].
  //
  // It asks the cheapest replica of a chunk (client/holders/replica_choice.h). If a lane or session
  // fails, it opens a new one, at most once per holder. If that fails too, it asks another replica.
  // With f32 partials the answer has the same bits, if that replica has the same kernel target.
  //
  // `report` may be null. It is written only if the call succeeds. Errors are those of the class.
  absl::Status Attend(const AttendCall& call, const PartialView& out, AttendReport* report);
  // The same, if it takes time to make room for the answer. `room` is called once the queries are
  // under way, while the holders compute. It may be called again and must return the same room, of
  // `room_memory`.
  absl::Status Attend(const AttendCall& call, AttendRoom room, AttendReport* report,
                      MemoryKind room_memory = MemoryKind::kHost);

  // Opens a context: resolves its chunks once, for all calls over it. Opens the sessions that its
  // first call needs, so it may wait for its holders.
  //   InvalidArgument     there is no corpus or they have different geometries, a chunk is there
  //                       twice, or an offset is beyond kOffsetMax.
  absl::StatusOr<Context> Open(const ContextSpec& spec, Instant deadline);

  // Attends one layer for all segments of the call, in one frame a holder if it fits a slot. The
  // partials of a segment are merged in the fixed tree over the chunks' ordinals
  // (attention/merge.h). Several corpora, and own rows behind them, are merged one after another.
  // With f32 partials of one kernel target, the answer has the same bits wherever the chunks lie
  // and whatever else is in the call. The report says so.
  //
  // Everything else is as in the other Attend.
  //   InvalidArgument     also: the segments do not cover q one after another, their contexts have
  //                       different geometries, or own rows are narrower than the geometry's.
  //   FailedPrecondition  also: a context is closed.
  absl::Status Attend(const LayerCall& call, const PartialView& out,
                      AttendReport* report = nullptr);
  // One decode step of one sequence at one layer.
  absl::Status Attend(const Context& context, uint32_t layer, const QueryView& q,
                      const PartialView& out, Instant deadline);
  // Posts the queries of a call and returns before the answer is there. See client/call/ticket.h.
  // The call's own memory (q, selections, limits, own rows, `out`, `report`) stays borrowed until
  // the ticket is done. The call and its segments are borrowed only until Submit returns. Opening a
  // session that is not up waits for the holder.
  //   ResourceExhausted   also: call_count_max calls are in progress.
  //   InvalidArgument, FailedPrecondition   as Attend. An index outside the context and every other
  //                       error are the ticket's.
  absl::StatusOr<Ticket> Submit(const LayerCall& call, const PartialView& out,
                                AttendReport* report = nullptr);

  // The same, but never waits for a holder, for a thread that drives many calls. A call that needs
  // a session or handles is not posted: its ticket's TryPoll returns kMustWait. So does that of a
  // call that attends more than TicketState::kShortPairsMax near rows, once it is posted.
  absl::StatusOr<Ticket> TrySubmit(const LayerCall& call, const PartialView& out,
                                   AttendReport* report = nullptr);

  // Pulls rows, in order of chunk, layer and token. Calls `sink` with each run of rows as it comes.
  // The rows are valid until `sink` returns. They have been checked against their checksum, unless
  // they came through memory that is shared with the holder (shm).
  //
  // Each run is shown exactly once. If a lane or a holder fails, the call goes on with the next
  // run, over a new session or at a replica. An error of `sink` ends the call and is returned.
  //   DataLoss            rows do not match their checksum.
  //   else                as the class says, or the sink's error.
  absl::Status Fetch(const FetchCall& call,
                     absl::FunctionRef<absl::Status(const FetchedRows&)> sink);

  // The same, into memory of the caller. `place` returns the memory of a run: token_count x
  // row_bytes (or columns.bytes) bytes, at an even address. `sink` is shown the run there. This
  // saves a copy if the fabric can write there itself (tcp).
  //
  // `place` is called in no certain order, and again for a run that is tried again. No two runs may
  // share a byte. The bytes of a run mean nothing until `sink` has been shown it, even after an
  // error. Nothing writes to the memory once the call has returned.
  //   InvalidArgument     also: a place has another size or an odd address.
  absl::Status Fetch(const FetchCall& call,
                     absl::FunctionRef<std::span<std::byte>(const RowRun&)> place,
                     absl::FunctionRef<absl::Status(const FetchedRows&)> sink);

  // Fetches rows chosen by index. Calls `sink` layer by layer, within a layer chunk by chunk, and
  // within a chunk in the order of the indices. Rows are never rotated. Holders gather the rows of
  // one reply. Rows far apart cost no more transfers than neighbours.
  //   InvalidArgument     also: an index is negative or beyond the chunks.
  //   else                as Fetch.
  absl::Status FetchSelection(const SelectionCall& call,
                              absl::FunctionRef<absl::Status(const SelectedRows&)> sink);
  // The same, into memory of the caller. `place(layer)` returns the memory of a layer: one row per
  // index of the layer, in their order, each of row_bytes or columns.bytes.
  //   InvalidArgument     also: a place has another size.
  absl::Status FetchSelection(const SelectionCall& call,
                              absl::FunctionRef<std::span<std::byte>(uint32_t layer)> place);

  // Appends the rows of whole chunks to a sequence of `cache` and makes them visible once all are
  // there. Rows are rotated to call.position; if it is unset, they stay at their canonical
  // positions. call.layer_begin and layer_end are the cache's. Rows that came are spliced while the
  // rest is under way.
  //
  // If a lane breaks, the call opens a new one and resumes at the first incomplete layer. Only that
  // layer's rows are sent twice.
  //
  // After an error the cache is as it was. The message names the blocks, and the first chunk and
  // layer that was not whole. The call has the sequence to itself; other sequences of the cache may
  // be used meanwhile. `report` may be null. It is filled even if fetching failed.
  //   InvalidArgument     also: the layers are not the cache's, or the call asks for columns.
  //   FailedPrecondition  also: the geometry is not the cache's, or another thread is extending the
  //                       sequence.
  //   ResourceExhausted   also: there are too few free blocks.
  //   NotFound            also: there is no such sequence.
  //   DataLoss            rows do not match their checksum.
  absl::Status FetchInto(const FetchCall& call, PagedCache& cache, CacheSequenceId sequence,
                         FetchIntoReport* report = nullptr);

  // Maps a whole chunk of a holder on this host into this process, read-only and without a copy.
  // Its rows are not compared with their checksums, because they did not travel.
  //   Unimplemented       no lane on shm leads to the holder, or it does not share its memory.
  //                       Fetch the rows instead.
  //   InvalidArgument     also: the memory it passed is not sealed or has another size.
  //   ResourceExhausted   also: this process can map no more.
  absl::StatusOr<MappedChunk> Map(const MapCall& call);

  // Says which primitive would be cheapest for each group of chunks with the same holders, and how
  // much of it is near. It goes by the constants that are known now: it asks nobody and waits for
  // nothing. Routers that place requests can ask many requesters so. Takes about 1 us a group.
  //   InvalidArgument     as Explain.
  absl::StatusOr<std::vector<GroupQuote>> Quote(const QuoteCall& call) const;

  using Explanation = ckv::Explanation;
  // Says which primitive would be cheapest for these chunks, and why. Acts on nothing. Rows that
  // are near already are neither pulled nor made anew.
  //
  // It asks the directory who is a member and sends every holder of the chunks one echo. It probes
  // holders whose constants are unknown or older than a minute: about 90 frames. The first time it
  // also measures each fabric and a few small attends. Expect milliseconds, and more then.
  //
  // All replicas are candidates. A replica that does not answer is left out. Chunks that no member
  // holds can be neither routed nor fetched. `local` is a candidate only if
  // RequesterOptions::profile has the cost of prefill.
  //   InvalidArgument     there is no corpus, the range is not valid, or query_rows is not 1 to
  //                       kAttendRowCountMax.
  //   Unavailable         no replica of a chunk answers, or its bandwidth cannot be told.
  //   ResourceExhausted   a holder has no session left, or too many calls wait here.
  //   else                as the class says.
  absl::StatusOr<Explanation> Explain(const ExplainCall& call);

  // Returns every holder that a corpus used here ever named, in order of their ids. For people and
  // metrics. Asks the directory who is a member, so it may block for up to a second. If the
  // directory does not answer, members are as last known.
  std::vector<HolderView> Holders() const;
  // The same without asking the directory: members are as Holders or Explain last found them. Takes
  // short locks only.
  std::vector<HolderView> KnownHolders() const;

  // Returns the counters. Takes no lock that a call holds for long. The hottest corpora are at most
  // `corpus_count_max`.
  RequesterStats Stats(size_t corpus_count_max = 0) const;

 private:
  struct State;
  absl::StatusOr<Ticket> Submit(const LayerCall& call, const PartialView& out, AttendReport* report,
                                bool may_wait);
  explicit Requester(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The options of Requester::Create. Every field has a default.
struct RequesterOptions {
  static constexpr uint32_t kCallCountMax = 4096;

  std::string id = "requester";  // the name in the logs of holders
  Clock* clock = Clock::Real();  // borrowed
  // Computes here: turns queries, attends own and near rows, merges and splices. Borrowed. Query
  // rows, own rows, answers and paged caches may lie in any memory that it reaches. Lanes are host
  // memory, or pinned memory if it reaches only that: each lane then costs all its memory. Near
  // rows are routed if it does not reach rows in host memory. It must outlive the requester, and a
  // device that pins the fabrics and, on loopback, the holders, too. If its device fails, calls end
  // with Internal, and the answer's memory means nothing.
  Backend* backend = Backend::Cpu();
  // The fabrics to use, in order of preference; borrowed. If empty, the requester makes shm (for
  // holders on this host) and tcp. A probe picks the fastest that the holder has too. The order
  // decides if the probe finds no difference.
  std::vector<Fabric*> fabrics;
  // Forces this fabric for every holder. If unset, a probe picks the fastest.
  std::optional<FabricKind> fabric;
  // The action if both sides have verbs, no verbs lane comes up, and tcp is the next choice.
  RdmaFallback rdma_fallback = RdmaFallback::kRefuse;
  // The number and sizes of a lane's slots (transport/fabric.h). They bound what one frame carries
  // and how many are under way per lane. A holder refuses lanes beyond its memory for them.
  LaneShape lane_shape;
  // Calls in progress at once, 1 to kCallCountMax. More calls wait for one to end, until their
  // deadline.
  uint32_t call_count_max = 16;
  // Threads that attend near and own rows of one call, its caller's among them: 1 to
  // WorkerPool::kThreadCountMax. Each call context has its own; they sleep while it computes
  // nothing. Bits do not depend on them. A device takes no notice of it.
  uint32_t call_threads = 1;
  // How long a waiting call polls before it sleeps. It polls through waits of up to 2 ms if the
  // last two were that short (transport/wait_policy.h). Zero disables polling.
  Duration spin_max = std::chrono::microseconds(50);
  // How long opening a session and its lane may take. A call's deadline may end it sooner.
  Duration connect_timeout = std::chrono::seconds(3);
  // Room for rows that contexts of policy near or auto have pulled (client/act/actor.h). Memory is
  // taken as it is used. 0 routes every query. So does a backend that does not reach rows in host
  // memory: then policies change nothing.
  uint64_t near_bytes = uint64_t{1} << 30;
  // Rows of a holder in the same process; borrowed. If set, what is pulled is copied to that
  // holder, and its chunks are near from the start. It must outlive the requester.
  NearSource* near_source = nullptr;
  // The cache of this host; borrowed. If set, what is pulled is copied there first, for all
  // requesters of the host, and mapped. It must outlive the requester.
  HostCache* host_cache = nullptr;
  // Takes the spans of attends whose trace is sampled (proto/base/span.h): attend, its lanes, what
  // is attended here, merges. Borrowed; by `clock`. If null, there are none, and holders have
  // theirs below the caller's.
  SpanSink* spans = nullptr;
  // The costs of the network's paths, for Explain and the choice of replicas; borrowed. If null,
  // only measured constants count.
  NetworkOracle* oracle = nullptr;
  // A profile written by `ckvctl calibrate` (ReadProfile, client/decide/profile_file.h). Explain
  // then uses its constants instead of measuring: merge, splice and prefill here, and per holder
  // the pull bandwidth and kernel time. It applies only on the host, to the
  // row widths and the kernel target it was measured with. Otherwise it is ignored, with one
  // warning in the log. If null, there is none.
  std::shared_ptr<const Profile> profile;
};

}  // namespace ckv

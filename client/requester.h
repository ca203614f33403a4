// The requester: resolves chunks, routes query rows to their holders, and merges the partials
// exactly.
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
// A row of q is one head of one token. It has d_qk - d_rope values, absorbed into the latent space,
// and then d_rope values, rotated to the query's own position in this request's context. The holder
// applies geometry.softmax_scale. Every row attends every token of the chunks, unless the call has
// RowLimits (client/calls.h).
//
// The answer is one partial over all chunks (attention/partial.h). An engine that decodes opens a
// Context for each sequence (client/context.h) and makes one LayerCall per layer for all of
// them. It passes the sequences' own rows in the call; they are attended in this process and merged
// into the answer.
//
// The two stubs use gRPC (CMake target ckv::client_grpc). The requester itself (ckv::client) uses
// only the interfaces of transport/control.h. An engine with its own directory implements
// those. The structs of calls and reports are in client/calls.h, which this file includes. A
// WatchStub (client/grpc/watch_stub.h) reports when to call Invalidate and OnMemberUp.
//
// ckv installs no signal handlers and no alternate signal stacks. On a processor with AMX it
// requests the tile registers from Linux, once, in Create at the latest. A signal's frame then
// takes 12 KB instead of 3. So an engine that calls sigaltstack must give each stack
// getauxval(AT_MINSIGSTKSZ) bytes plus the space that its handler needs. If a smaller stack exists
// before Create, Linux refuses AMX, and kernels use vector instructions. After Create, sigaltstack
// fails with ENOMEM for a smaller stack.

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
#include "client/calls.h"
#include "client/context.h"
#include "client/estimate.h"
#include "client/explanation.h"
#include "client/holder_view.h"
#include "client/prompt_match.h"
#include "client/requester_options.h"
#include "client/requester_stats.h"
#include "client/row_choice.h"
#include "client/ticket.h"
#include "proto/base/clock.h"
#include "proto/base/span.h"
#include "proto/corpus.h"
#include "proto/ids.h"
#include "transport/control.h"
#include "transport/fabric.h"

namespace ckv {

struct CacheSequenceId;  // client/paged/paged_cache.h
class PagedCache;

// A client of the holders that one directory lists. One per process is enough: it keeps sessions,
// snapshots of corpora and constants, and shares them between calls.
//
// Attend always routes and Fetch always fetches. The caller decides between them; Explain reports
// which costs less.
//
// Threads: every method may be called from any thread at any time. Calls block. A call runs on its
// caller's thread, and so do its callbacks (sinks, places and buffers). From beginning to end it
// uses one of call_count_max call contexts. Each context has its own lanes to each holder.
// Calls on different threads share no lane. They share no lock except a short one to take a
// context.
//
// Lifetime: the directory, the factory of holder stubs, and everything that RequesterOptions
// borrows must outlive the requester. A call borrows its arguments until it returns. Corpora and
// mapped chunks may outlive the requester. The caller owns all memory that it passes.
//
// Deadlines and retries: no call begins anything after its deadline. Before it, a call recovers
// from failures where it can. It reopens a failed session, tries another replica, and waits as
// overloaded holders request. If no holder of a chunk answers, the call waits until one does or the
// deadline is near. Without a deadline it waits for kReturnWaitMax (10 s), so give calls a
// deadline. Explain and Estimate do not wait: they describe the current state of holders. The
// limits are in client/call/attempts.h. An error means that these attempts failed, and names the
// causes. NextActFor (proto/base/status.h) maps every error to what the caller should do next.
//
// These errors mean the same in every call that queries holders:
//   InvalidArgument     the call is not valid: a range, count, width or index. Nothing was sent.
//   NotFound            a holder no longer has a chunk. The corpus is invalidated: Resolve again.
//   Unavailable         a holder cannot be reached, and neither can a replica of what it holds.
//                       The call has already tried a new session and the replicas. The next Resolve
//                       queries the directory for the corpus's current location.
//   ResourceExhausted   a holder is overloaded and requested a retry, more often or after a longer
//                       wait than the limits on retries allow. The text ends with the holder's
//                       hint, which RetryAfterOf (client/holders/retry.h) reads. Or too many calls
//                       are waiting for a context here.
//   DeadlineExceeded    a holder did not answer in time, or no context became free in time.
//   FailedPrecondition  the geometry or the wire version differs. The call has already tried the
//                       replicas. A retry cannot help.
//   DataLoss            an answer arrived damaged, over a second lane too, and no replica gave a
//                       whole one.
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

  // Returns the corpus of this name from the directory, as an immutable snapshot. The requester
  // keeps it until Invalidate, or until a holder's answer shows that it is stale. Calls over this
  // corpus read on behalf of `tenant`; "" is the shared tenant.
  //   NotFound            there is no such corpus for this tenant.
  //   Unavailable         the directory does not answer and no snapshot is kept.
  //   InvalidArgument     the directory's answer is not a corpus.
  absl::StatusOr<std::shared_ptr<const Corpus>> Resolve(std::string_view name,
                                                        std::string_view tenant, Instant deadline);
  // Returns the corpus of this name if it is kept, so that Resolve would not query the directory.
  // Returns null otherwise.
  std::shared_ptr<const Corpus> Kept(std::string_view name, std::string_view tenant) const;
  // Returns a corpus without a name, made of these chunks in this order, for callers that have only
  // chunk ids. The directory supplies their holders.
  //   InvalidArgument     there are no ids, or more than kCorpusChunkCountMax.
  //   NotFound            no holder has one of the chunks; the message names it.
  //   FailedPrecondition  a chunk is known, but only with another geometry than `geometry`.
  absl::StatusOr<std::shared_ptr<const Corpus>> ResolveChunks(std::span<const ChunkId> ids,
                                                              const Geometry& geometry,
                                                              std::string_view tenant,
                                                              Instant deadline);
  // Returns the key that the ids of the tenant's chunks are made with (store/memory/chunk_id.h).
  // The zero key means that they are plain. The requester keeps a key. After Invalidate with an
  // empty name, it queries the directory again, and uses the kept key if the directory does not
  // answer.
  //   Unavailable         the directory does not answer.
  absl::StatusOr<TenantKey> TenantKeyOf(std::string_view tenant, Instant deadline);
  // Returns the prefix match of a prompt: its chunks, from all corpora that the tenant may read,
  // and the gaps between them (client/prompt_match.h). Pass the ids to ResolveChunks and the
  // offsets to calls. Nothing is kept.
  //   InvalidArgument     there are too many tokens, a token or an extra key is not valid, or the
  //                       chunks found are of several models.
  //   Unavailable         the directory does not answer.
  absl::StatusOr<PromptMatch> MatchPrompt(const PromptCall& call);
  // Drops the snapshots of this name. Call it when the directory has changed; the next Resolve then
  // queries the directory. If `name` is empty, drops everything. Snapshots in use stay valid.
  //
  // A WatchStub (client/grpc/watch_stub.h) follows the directory and reports changes to an engine.
  // Its OnChange passes a name for Invalidate, and its OnMember passes a member for OnMemberUp.
  void Invalidate(std::string_view name);
  // Call it when the directory reports that this member is up. If the member is a holder in a later
  // epoch than its sessions, drops the sessions before their next use. Without this call, the next
  // calls detect the change themselves, at the cost of one attempt each.
  void OnMemberUp(const Member& member);

  // Attends query rows over chunks by routing them: queries one holder of each chunk and merges the
  // partials in a fixed order. Writes `out` only once every chunk has been answered exactly once
  // (I1). After an error, `out` is unchanged. `out` takes f32: o [q.count, d_v], m and l [q.count].
  //
  // Queries the cheapest replica of a chunk (client/holders/replica_choice.h). If a lane or session
  // fails, opens a new one, at most once per holder. If that fails too, queries another replica.
  // With f32 partials, the answer has the same bits if that replica has the same kernel target.
  //
  // `report` may be null. It is written only if the call succeeds. Errors are those of the class.
  absl::Status Attend(const AttendCall& call, const PartialView& out, AttendReport* report);
  // The same, for callers that need time to allocate memory for the answer. `buffers` returns that
  // memory, of kind `buffer_memory`. It is called once the queries are sent, while the holders
  // compute. It may be called again and must return the same memory.
  absl::Status Attend(const AttendCall& call, AttendBuffers buffers, AttendReport* report,
                      MemoryKind buffer_memory = MemoryKind::kHost);

  // Opens a context: resolves its chunks once, for all calls over it. Opens the sessions that its
  // first call needs, so it may wait for its holders.
  //   InvalidArgument     there is no corpus, the corpora have different geometries, a chunk occurs
  //                       twice, or an offset is beyond kOffsetMax.
  absl::StatusOr<Context> Open(const ContextSpec& spec, Instant deadline);

  // Attends one layer for all segments of the call, in one frame per holder if it fits a slot. The
  // partials of a segment are merged in the fixed tree over the chunks' ordinals
  // (attention/merge.h). If there are several corpora, they are merged one after another, and own
  // rows after them. With f32 partials of one kernel target, the answer has the same bits wherever
  // the chunks are placed and whatever else is in the call. AttendReport::same_bits_anywhere
  // reports whether this applies.
  //
  // Everything else is as for the Attend above.
  //   InvalidArgument     also: the segments do not cover q one after another, their contexts have
  //                       different geometries, or own rows are narrower than the geometry's.
  //   FailedPrecondition  also: a context is closed.
  absl::Status Attend(const LayerCall& call, const PartialView& out,
                      AttendReport* report = nullptr);
  // Attends one layer for one decode step of one sequence.
  absl::Status Attend(const Context& context, uint32_t layer, const QueryView& q,
                      const PartialView& out, Instant deadline);
  // Posts the queries of a call and returns before the answer arrives. See client/ticket.h.
  // The call's own memory (q, selections, limits, own rows, `out`, `report`) stays borrowed until
  // the ticket is done. The call and its segments are borrowed only until Submit returns. If a
  // session must be opened, Submit waits for the holder.
  //   ResourceExhausted   also: call_count_max calls are in progress.
  //   InvalidArgument, FailedPrecondition   as for Attend. The ticket reports an index outside the
  //                       context and every other error.
  absl::StatusOr<Ticket> Submit(const LayerCall& call, const PartialView& out,
                                AttendReport* report = nullptr);

  // The same, but never waits for a holder, for a thread that drives many calls. A call that needs
  // a session or handles is not posted: its ticket's TryPoll returns kMustWait. For a posted call,
  // TryPoll also returns kMustWait if more than TicketState::kShortPairsMax pairs of query rows and
  // locally cached rows must be attended.
  absl::StatusOr<Ticket> TrySubmit(const LayerCall& call, const PartialView& out,
                                   AttendReport* report = nullptr);

  // Fetches rows, in order of chunk, layer and token. Calls `sink` with each range of rows as it
  // arrives. The rows are valid until `sink` returns. They have been checked against their
  // checksum, unless they arrived through memory that is shared with the holder (shm).
  //
  // Each range is passed to `sink` exactly once. If a lane or a holder fails, the call continues
  // with the next range, over a new session or at a replica. An error of `sink` ends the call and
  // is returned.
  //   DataLoss            rows do not match their checksum.
  //   otherwise           errors of the class, or the sink's error.
  absl::Status Fetch(const FetchCall& call,
                     absl::FunctionRef<absl::Status(const FetchedRows&)> sink);

  // The same, into the caller's memory. `place` returns the memory of a range: token_count x
  // row_bytes (or columns.bytes) bytes, at an even address. `sink` receives the range there. This
  // saves a copy if the fabric can write there directly (tcp).
  //
  // `place` is called in no particular order, and again for a range that is retried. No two ranges
  // may share a byte. The bytes of a range are undefined until `sink` has received it, even after
  // an error. Nothing writes to the memory once the call has returned.
  //   InvalidArgument     also: a place has another size or an odd address.
  absl::Status Fetch(const FetchCall& call,
                     absl::FunctionRef<std::span<std::byte>(const RowRun&)> place,
                     absl::FunctionRef<absl::Status(const FetchedRows&)> sink);

  // Selects, for each token, the k rows of a context with the best index scores. Writes them to
  // `rows`, [tokens][k], ascending, counted as a Selection of the context counts them. If there are
  // fewer, -1 follows. Among equal scores, the lower row is selected. Holders score the
  // keys where they are, and local chunks are scored here. Holders of one kernel target select the
  // same rows for any placement. An own row i counts as context.token_count() + i. Use `rows` as
  // the selection of an attend, and for later layers if the model reuses its choice. `report` may
  // be null.
  //   InvalidArgument     also: too many rows, or rows of another size.
  //   FailedPrecondition  also: the context is closed, or its model has no index.
  absl::Status SelectRows(const SelectRowsCall& call, std::span<int32_t> rows,
                          SelectRowsReport* report);

  // The same for attends by this requester, which need no list of the rows: holders remember them
  // (client/row_choice.h). Saves a round trip, and 8 bytes for each row.
  absl::StatusOr<RowChoice> ChooseRows(const SelectRowsCall& call, SelectRowsReport* report);

  // Fetches rows chosen by index. Calls `sink` layer by layer, within a layer chunk by chunk, and
  // within a chunk in the order of the indices. Rows are never rotated. Holders gather the rows of
  // one reply, so distant rows need no more transfers than neighbours.
  //   InvalidArgument     also: an index is negative or beyond the chunks.
  //   otherwise           as for Fetch.
  absl::Status FetchSelection(const SelectionCall& call,
                              absl::FunctionRef<absl::Status(const SelectedRows&)> sink);
  // The same, into the caller's memory. `place(layer)` returns the memory of a layer: one row per
  // index of the layer, in their order, each of row_bytes or columns.bytes.
  //   InvalidArgument     also: a place has another size.
  absl::Status FetchSelection(const SelectionCall& call,
                              absl::FunctionRef<std::span<std::byte>(uint32_t layer)> place);

  // Appends the rows of whole chunks to a sequence of `cache` and makes them visible once all of
  // them have arrived. Rows are rotated to call.position; if it is unset, they stay at their
  // canonical positions. call.tensor_begin and tensor_end are the cache's layers. Rows that have
  // arrived are spliced while the rest is in flight.
  //
  // If a lane breaks, the call opens a new one and resumes at the first incomplete layer. Only that
  // layer's rows are sent twice.
  //
  // After an error the cache is unchanged. The message names the blocks, and the first incomplete
  // chunk and layer. The call needs exclusive use of the sequence; other sequences of the cache may
  // be used meanwhile. `report` may be null. It is filled even if fetching failed.
  //   InvalidArgument     also: the layers are not the cache's, or the call requests columns.
  //   FailedPrecondition  also: the geometry is not the cache's, or another thread is extending the
  //                       sequence.
  //   ResourceExhausted   also: there are too few free blocks.
  //   NotFound            also: there is no such sequence.
  //   DataLoss            rows do not match their checksum.
  absl::Status FetchInto(const FetchCall& call, PagedCache& cache, CacheSequenceId sequence,
                         FetchIntoReport* report = nullptr);

  // Maps a whole chunk of a holder on this host into this process, read-only and without a copy.
  // Its rows are not checked against their checksums, because they were not transferred.
  //   Unimplemented       there is no shm lane to the holder, or it does not share its memory.
  //                       Fetch the rows instead.
  //   InvalidArgument     also: the memory that it passed is not sealed or has another size.
  //   ResourceExhausted   also: this process cannot map more memory.
  absl::StatusOr<MappedChunk> Map(const MapCall& call);

  // Estimates which primitive would be cheapest for each group of chunks with the same holders, and
  // reports how much of each group is cached locally. Uses only the constants known now: sends
  // nothing and waits for nothing. So a router that places requests can query many requesters.
  // Takes about 1 us per group.
  //   InvalidArgument     as for Explain.
  absl::StatusOr<std::vector<GroupEstimate>> Estimate(const EstimateCall& call) const;

  using Explanation = ckv::Explanation;
  // Reports which primitive would be cheapest for these chunks, and why. Executes none of them.
  // Rows already cached locally are neither fetched nor recomputed.
  //
  // Queries the directory for its members and sends every holder of the chunks one echo. Probes
  // holders whose constants are unknown or older than a minute: about 90 frames. The first call
  // also measures each fabric and a few small attends. Expect milliseconds, and more for the first
  // call.
  //
  // All replicas are candidates. A replica that does not answer is left out. Chunks that no member
  // holds can be neither routed nor fetched. `local` is a candidate only if the engine has reported
  // its prefills (ReportPrefill), or RequesterOptions::profile has their cost.
  //   InvalidArgument     there is no corpus, the range is not valid, or query_rows is not 1 to
  //                       kAttendRowCountMax.
  //   Unavailable         no replica of a chunk answers, or its bandwidth cannot be determined.
  //   ResourceExhausted   a holder has no session left, or too many calls are waiting here.
  //   otherwise           errors of the class.
  absl::StatusOr<Explanation> Explain(const ExplainCall& call);

  // Takes the time in which the engine prefilled `tokens` tokens of a prompt, over all layers of
  // the model. The median of the last 31 reports of at least 64 tokens replaces a profile's
  // cost, in Explain, Estimate and contexts of policy auto. It applies from the third on, to
  // the model and revision of `geometry`. Do not report a prefill that attended routed rows.
  //   InvalidArgument     the geometry is not valid, or there are no tokens, or `took` is not above
  //                       0 and at most an hour.
  absl::Status ReportPrefill(const Geometry& geometry, uint64_t tokens, Duration took);

  // Returns every holder that any corpus used here has named, in order of their ids. For people and
  // metrics. Queries the directory for its members, so it may block for up to a second. If the
  // directory does not answer, members are as last known.
  std::vector<HolderView> Holders() const;
  // The same without querying the directory: members are as Holders or Explain last found them.
  // Takes short locks only.
  std::vector<HolderView> KnownHolders() const;

  // Returns the ids of the chunks in the local row cache, in their order. At most
  // LocalRowCache::kChunkCountMax (client/prefetch/local_row_cache.h).
  std::vector<ChunkId> LocalChunks() const;

  // Returns the counters. Takes no lock that a call holds for long. Lists at most
  // `corpus_count_max` of the hottest corpora.
  RequesterStats Stats(size_t corpus_count_max = 0) const;

 private:
  struct State;
  absl::StatusOr<Ticket> Submit(const LayerCall& call, const PartialView& out, AttendReport* report,
                                bool may_wait);
  // Returns the context of a call, or null.
  static std::shared_ptr<ContextState> StateOf(const SelectRowsCall& call) {
    return call.context == nullptr ? nullptr : call.context->state_;
  }
  explicit Requester(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckv

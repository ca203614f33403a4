// One attempt of an attend, in order:
//   plan.Begin   lists what each segment attends
//   Prepare      chooses a replica of each group, brings up its link, and finds the handles
//   plan.Cut     divides the call into blocks, and into frames that fit lane slots
//   StartFrames  decides when to merge: all at the end if every reply fits a slot of its own, else
//                block by block into memory of the merger
//   Advance      posts frames while slots are free, takes replies, and merges the blocks whose
//                replies are all there. It waits for no stream
// If the blocks were merged in memory of the merger, the answer is then copied to the caller's
// memory.

#include "client/call/route.h"

#include <algorithm>

#include "attention/query/query_values.h"
#include "client/holders/retry.h"
#include "client/trace/call_tries.h"
#include "proto/base/status.h"
#include "transport/wire_attend.h"

namespace ckv {
namespace {

// Adds the pairs of a query row and an attended row.
void CountPairs(const PlannedCall& planned, AttendReport& report) {
  for (const PlannedUnit& unit : planned.plan.units()) {
    const RouteSegment& segment = planned.call.segments[unit.segment];
    for (const AttendedChunk& chunk : planned.plan.AttendedBy(unit)) {
      const uint32_t rows =
          chunk.row_count(segment.context->chunks()[chunk.context_index].token_count);
      (chunk.peer_index == kCachedPeerIndex ? report.cached_pairs : report.routed_pairs) +=
          uint64_t{unit.row_count} * rows;
    }
  }
  report.own_pairs += OwnPairs(planned.call);
}

// The chosen rows must be found again (HedgedAttend).
absl::Status CandidatesElsewhere() {
  return absl::OutOfRangeError("attend: chosen rows are no longer where they were scored");
}

void CountCall(const RouteCall& call, bool requested, Duration took, Duration lost,
               CallCounters& counters) {
  (requested ? counters.route : counters.cached).Add(took + lost);
  if (lost > Duration(0))
    counters.lost_ns.fetch_add(static_cast<uint64_t>(lost.count()), std::memory_order_relaxed);
  for (const RouteSegment& segment : call.segments) {
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->corpora())
      counters.corpora.Count(*corpus, segment.row_count);
  }
}

}  // namespace

Router::Router(const LinkOptions* options, LinkTable* links, Exchange* exchange,
               ComputeStream* stream)
    : clock_(options->clock),
      counters_(options->counters),
      shape_(options->shape),
      links_(*links),
      exchange_(*exchange),
      stream_(*stream),
      spans_(options->spans),
      order_(stream),
      local_(&planned_, stream, options->clock, options->here, &spans_),
      merger_(&planned_, &local_, stream, options->clock, &spans_),
      frames_(&planned_, exchange, stream, &order_, options->clock, &spans_),
      learner_(&planned_, &frames_, &local_, exchange, options->clock, options->calls,
               options->counters),
      late_(&planned_, exchange) {}

absl::Status Router::Attend(const RouteCall& call, AttendBuffers buffers, AttendReport* report) {
  const auto run = [&]() -> absl::Status {
    CKV_RETURN_IF_ERROR(Begin(call));
    while (true) {
      CKV_ASSIGN_OR_RETURN(const bool done, Advance(buffers));
      if (done) return absl::OkStatus();
      CKV_RETURN_IF_ERROR(Rest());
    }
  };
  absl::Status status = run();
  status.ok() ? Finish(report) : GiveUp();
  return status;
}

absl::Status Router::Warm(const RouteCall& call) {
  planned_.call = call;
  exchange_.Clear();
  CKV_RETURN_IF_ERROR(planned_.plan.Begin(call));
  return Prepare();
}

absl::Status Router::Begin(const RouteCall& call) {
  planned_.call = call;
  begin_ = clock_->Now();
  late_.Clear();
  phase_ = Phase::kQueries;
  progress_ = false;
  order_.Begin();
  if (call.tries != nullptr) call.tries->Attempt(begin_);
  spans_.Begin(call.trace, call.layer, call.q.count, begin_, call.tries);
  exchange_.Clear();
  if (begin_ >= call.deadline)
    return absl::DeadlineExceededError("attend: the deadline had passed before anything was sent");
  CKV_RETURN_IF_ERROR(CheckRouteCall(call, stream_.backend()));
  CKV_RETURN_IF_ERROR(planned_.plan.Begin(call));
  CKV_RETURN_IF_ERROR(Prepare());
  CKV_RETURN_IF_ERROR(planned_.plan.Cut(call, planned_.peers));
  StartFrames();
  exchange_.Start(call.deadline);
  return TakeQueries().status();
}

absl::Status Router::Prepare() {
  CKV_RETURN_IF_ERROR(ChooseAndConnect());
  if (!links_.TargetsChanged()) return absl::OkStatus();
  // Only once: if a holder returns with another target meanwhile, the call's report shows it.
  exchange_.Clear();
  return ChooseAndConnect();
}

// Brings up the links of the chosen holders, and finds the handles.
absl::Status Router::ChooseAndConnect() {
  const RouteCall& call = planned_.call;
  planned_.peers.clear();
  local_.Begin();
  links_.BeginAttempt();
  for (const RouteSegment& segment : call.segments) {
    const ReplicaWork work = {Primitive::kRoute, call.q.count, segment.selected_count(), call.wire};
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->corpora())
      CKV_RETURN_IF_ERROR(links_.AddCorpus(corpus, work).status());
  }
  links_.Tidy();
  for (const PlannedUnit& unit : planned_.plan.units()) CKV_RETURN_IF_ERROR(FindHandles(unit));
  return absl::OkStatus();
}

absl::Status Router::FindHandles(const PlannedUnit& unit) {
  const RouteCall& call = planned_.call;
  const ContextState& context = *call.segments[unit.segment].context;
  const std::span<AttendedChunk> attended = planned_.plan.attended();
  uint32_t part = kContextPartCountMax, group = LinkTable::kNoLink, peer_index = 0;
  LinkTable::ChunkLinks* chunk_links = nullptr;
  HolderLink* link = nullptr;
  const LocalRowTable* const cached =
      ReachesLocalRows(stream_.backend()) ? call.segments[unit.segment].cached : nullptr;
  for (uint32_t i = unit.attended_begin; i < unit.attended_end; ++i) {
    const ContextChunk& chunk = context.chunks()[attended[i].context_index];
    const bool chosen = attended[i].index_begin == kChosen;
    const LocalRows* const rows =
        cached == nullptr || chosen ? nullptr : (*cached)[attended[i].context_index].get();
    if (rows != nullptr && rows->current() && local_.Reserve(unit, attended[i])) {
      attended[i].peer_index = kCachedPeerIndex;
      continue;
    }
    if (unit.chosen && !chosen) return CandidatesElsewhere();
    if (chunk.part != part) {
      part = chunk.part;
      group = LinkTable::kNoLink;
      CKV_ASSIGN_OR_RETURN(chunk_links, links_.AddCorpus(context.corpora()[part], {}));
    }
    // Neighbours mostly have the same holders.
    if (chunk_links->group_of_chunk[chunk.ordinal] != group) {
      group = chunk_links->group_of_chunk[chunk.ordinal];
      link = chosen ? ChooseCandidatesOf(unit, attended[i], *chunk_links, chunk)
                    : &links_.Choose(*chunk_links, chunk.ordinal);
      if (link == nullptr) return CandidatesElsewhere();
      peer_index = exchange_.Add(*link);
      CKV_RETURN_IF_ERROR(AddPeer(*link, peer_index));
    }
    attended[i].peer_index = peer_index;
    if (chunk_links->generations[chunk.ordinal] == link->generation()) {
      attended[i].handle = chunk_links->handles[chunk.ordinal];
      continue;
    }
    auto handle = links_.HandleOf(*chunk_links, chunk.ordinal, call.deadline);
    if (!handle.ok()) return links_.Fail(*link, handle.status());
    attended[i].handle = *handle;
  }
  return absl::OkStatus();
}

// Returns the link to the holder that has the candidates of a chunk, or null.
HolderLink* Router::ChooseCandidatesOf(const PlannedUnit& unit, const AttendedChunk& attended,
                                       LinkTable::ChunkLinks& chunk_links,
                                       const ContextChunk& chunk) {
  const RowChoiceState& choice = *planned_.call.segments[unit.segment].choice;
  const HolderPeer* const holder = choice.holder(choice.source_of(attended.context_index));
  return links_.ChooseAt(chunk_links, chunk.ordinal, *holder);
}

// Brings the link up if it is new to this call.
absl::Status Router::AddPeer(HolderLink& link, uint32_t peer_index) {
  if (peer_index < planned_.peers.size()) return absl::OkStatus();
  if (absl::Status status = links_.EnsureUp(link, planned_.call.deadline); !status.ok())
    return Annotate(status, link.peer().Describe());
  planned_.peers.push_back({.shape = shape_});
  return absl::OkStatus();
}

void Router::StartFrames() {
  answers_.assign(planned_.peers.size(), Answers{});
  bytes_received_ = 0;
  targets_ = {};
  // A device's merge has bits of its own. The processor's merge has the same bits for every target.
  const Backend& backend = stream_.backend();
  if (backend.home() == MemoryKind::kDevice)
    targets_.Note(KernelTargetIdOf(backend.kernel_target()));
  frames_.Begin();
  learner_.Begin();
  merger_.Begin(/*late=*/frames_.fits_slots());
}

absl::StatusOr<bool> Router::Advance(AttendBuffers buffers) {
  progress_ = false;
  if (phase_ < Phase::kReplies) {
    CKV_ASSIGN_OR_RETURN(const bool started, StartHere(buffers));
    if (!started) {
      // If a stream is late, a holder whose reply has arrived is not at fault.
      if (clock_->Now() >= planned_.call.deadline) CKV_RETURN_IF_ERROR(exchange_.ReadLate());
      CKV_RETURN_IF_ERROR(exchange_.Check());
      return false;
    }
    phase_ = Phase::kReplies;
  }
  CKV_ASSIGN_OR_RETURN(const bool came, exchange_.Collect([&](const Exchange::Reply& reply) {
    return Accept(reply);
  }));
  const uint32_t merged_before = merger_.merged_count();
  CKV_RETURN_IF_ERROR(Merge());
  if (!merger_.complete()) {
    CKV_ASSIGN_OR_RETURN(const bool posted, frames_.PostAll(merger_.first_open()));
    progress_ = came || posted || merger_.merged_count() > merged_before;
    // Merges end soon, and the answer may then be complete.
    if (!progress_ && !merger_.merging()) CKV_RETURN_IF_ERROR(exchange_.Check());
    return false;
  }
  if (phase_ != Phase::kEnd) {
    CKV_RETURN_IF_ERROR(merger_.End(buffers));
    phase_ = Phase::kEnd;
  }
  if (!stream_.Ready()) return false;
  CKV_RETURN_IF_ERROR(stream_.Wait());
  merger_.Trim();
  return true;
}

absl::Status Router::Rest() {
  if (progress_) return exchange_.EndRound(true);
  if (order_.must_wait()) return order_.Wait();
  return waits_for_stream() ? stream_.Wait() : exchange_.Pause();
}

void Router::GiveUp() {
  stream_.Wait().IgnoreError();  // slots and the caller's memory are in use until then
  frames_.GiveUp();
  exchange_.GiveUp();
  local_.Trim();
  if (!spans_.on()) return;
  links_.would_wait() ? spans_.Leave() : spans_.End(/*failed=*/true, clock_->Now());
}

// Orders the call's work after its queries, and posts the first frames. Returns false if a stream
// must be waited for first.
absl::StatusOr<bool> Router::TakeQueries() {
  RouteCall& call = planned_.call;
  if (order_.MustWaitFor(call.q.after)) return false;
  CKV_RETURN_IF_ERROR(Annotate(CheckQueryValues(call.q, call.geometry().d_qk), "attend"));
  CKV_RETURN_IF_ERROR(order_.Follow(call.q.after));
  phase_ = Phase::kHere;
  CKV_RETURN_IF_ERROR(frames_.PostAll(merger_.first_open()).status());
  // Not before: opening sessions, and waiting for the queries, is not the holders' time.
  if (links_.AnyReplicated()) late_.Begin(clock_->Now());
  return true;
}

// Sends the first frames before any other work is put on the stream. Then attends local rows.
// Returns false if a stream must be waited for first.
absl::StatusOr<bool> Router::StartHere(AttendBuffers buffers) {
  if (phase_ == Phase::kQueries) {
    CKV_ASSIGN_OR_RETURN(const bool taken, TakeQueries());
    if (!taken) return false;
  }
  CKV_RETURN_IF_ERROR(frames_.PostWritten().status());
  if (frames_.holds_any()) return false;
  const PartialView out = buffers();
  if (order_.MustWaitFor(out.after)) return false;
  for (const RouteSegment& segment : planned_.call.segments) {
    for (const OwnRows& own : segment.own) {
      if (order_.MustWaitFor(own.rows.after)) return false;
    }
  }
  CKV_RETURN_IF_ERROR(merger_.SetTarget(out, order_));
  CKV_RETURN_IF_ERROR(AttendHere());
  return true;
}

absl::Status Router::AttendHere() {
  // If nothing is routed, nothing can fail any more.
  const bool in_place = merger_.late() && planned_.peers.empty();
  CKV_RETURN_IF_ERROR(local_.Attend(order_, in_place ? &merger_.target() : nullptr));
  if (!local_.attends_any()) return absl::OkStatus();
  targets_.Note(KernelTargetIdOf(stream_.backend().kernel_target()));
  return merger_.CoverLocal();
}

absl::Status Router::Accept(const Exchange::Reply& reply) {
  const PlannedFrame& planned = planned_.plan.frames()[reply.tag];
  ExpectedReply expected;
  expected.request_id = reply.header.request_id;
  expected.flags = frames_.flags(reply.tag);
  expected.row_count = planned.row_count;
  expected.partial_count = planned.partial_count;
  expected.body_bytes = planned.reply_bytes;
  CKV_RETURN_IF_ERROR(
      CheckReplyForHint(reply.header, reply.bytes.subspan(sizeof(ReplyHeader)), expected));
  bytes_received_ += reply.bytes.size();
  Answers& answers = answers_[reply.peer_index];
  answers.approximate = answers.approximate || (reply.header.flags & kFlagApproximate) != 0;
  // Frames that shared a kernel call each carry its time, so equal neighbours are counted once.
  if (reply.header.compute_ns != answers.last_compute_ns)
    answers.compute_ns += reply.header.compute_ns;
  answers.last_compute_ns = reply.header.compute_ns;
  targets_.Note(reply.header.kernel_target);
  if (spans_.on()) spans_.EndFrame(reply.tag, reply.bytes.size(), clock_->Now());
  learner_.Observe(reply);
  if (late_.on()) late_.Answered(reply.peer_index, clock_->Now());
  CKV_ASSIGN_OR_RETURN(const FramePoster::Body body, frames_.Keep(reply));
  return merger_.Take(reply.tag, body.bytes, body.memory);
}

// Merges what is complete, and frees the slots that this emptied.
absl::Status Router::Merge() {
  CKV_RETURN_IF_ERROR(merger_.Merge());
  for (const uint32_t frame : merger_.done_frames()) frames_.Release(frame);
  return absl::OkStatus();
}

void Router::Targets::Note(KernelTargetId target) {
  differ |= target == KernelTargetId::kUnknown || (last.has_value() && *last != target);
  last = target;
}

void Router::GiveUpLate() {
  late_.End(clock_->Now());
  GiveUp();
}

void Router::Finish(AttendReport* report) {
  const Instant now = clock_->Now();
  late_.End(now);
  if (spans_.on()) spans_.End(/*failed=*/false, now);
  const RouteCall& call = planned_.call;
  const Duration took = now - begin_;
  const Duration lost = call.tries == nullptr ? Duration(0) : call.tries->lost();
  if (counters_ != nullptr && !call.is_trial)
    CountCall(call, frames_.asked_count() > 0, took, lost, *counters_);
  learner_.JudgeRounds();
  if (lost == Duration(0)) learner_.JudgeCall(took);
  CountUses(took);
  local_.Trim();
  if (report != nullptr) Report(took, lost, *report);
}

// Counts the call for contexts that are watched.
void Router::CountUses(Duration took) {
  const RouteCall& call = planned_.call;
  const bool f32 = call.wire == PartialDtype::kF32;
  double routed_us = 0;  // 0 unless all of it was routed for watched contexts
  for (const RouteSegment& segment : call.segments) {
    if (!segment.context->watched()) continue;
    if (routed_us == 0 && local_.cached_pairs() == 0 && call.prompt)
      routed_us = double(took.count()) / 1e3;
    uint32_t own_count = 0;
    for (const OwnRows& own : segment.own) own_count += own.rows.count;
    segment.context->CountCall(
        {segment.row_count, call.q.count, segment.selected_count(), own_count, f32, routed_us});
    // A holder returned with another kernel target than the one that attends its cached rows here.
    if (f32 && targets_.differ && local_.cached_pairs() > 0) segment.context->LookNow();
  }
}

void Router::Report(Duration took, Duration lost, AttendReport& report) const {
  const RouteCall& call = planned_.call;
  report = {};
  report.holder_count = frames_.asked_count();
  for (const Answers& answers : answers_) {
    report.compute_ns_max = std::max(report.compute_ns_max, answers.compute_ns);
    report.approximate = report.approximate || answers.approximate;
  }
  CountPairs(planned_, report);
  for (const RouteSegment& segment : call.segments)
    report.prefetched_bytes += segment.context->TakePrefetched();
  report.bytes_sent = frames_.bytes_sent();
  report.bytes_received = bytes_received_;
  report.targets_differ = targets_.differ;
  if (!targets_.differ && targets_.last) report.kernel_target = *targets_.last;
  report.precision = PrecisionOf(call.precision, call.wire);
  report.same_bits_anywhere =
      call.wire == PartialDtype::kF32 && !targets_.differ && !report.approximate;
  if (call.tries != nullptr) report.failed_attempt_count = call.tries->attempt_count - 1;
  report.lost = lost;
  report.elapsed = took + lost;
}

}  // namespace ckv

// The requesting half of the router. One attempt of an attend, in order:
//   plan.Begin  lists what each segment attends
//   Prepare     chooses a replica of each group, brings up its link, and finds the handles
//   plan.Cut    divides the call into blocks, and into frames that fit lane slots
//   StartFlows  decides when to merge: all at the end if every reply fits a slot of its own, else
//               block by block into memory of the router
//   Advance     posts frames while slots are free, takes replies, and merges the blocks whose
//               replies are all there (route_merge.cc). It waits for no stream
// If the blocks were merged in memory of the router, the answer is then copied to the caller's
// memory.

#include "client/call/route.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "attention/query/query_values.h"
#include "client/holders/lane_pinning.h"
#include "client/holders/retry.h"
#include "client/trace/call_tries.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// A call that merges replies as they arrive first keeps its result in the router's memory. If that
// is larger than this, it is freed after the call.
constexpr size_t kMergedBytesKept = size_t{16} << 20;
// More rows than this for one holder make a bulk call. A default slot fits this many rows of
// DeepSeek, and a holder's queue of short requests takes one slot per session
// (server/dispatch/admission.h).
constexpr uint64_t kShortRowCountMax = 256;

}  // namespace

Router::Router(const LinkOptions* options, LinkTable* links, Exchange* exchange,
               ComputeStream* stream)
    : clock_(options->clock),
      live_here_(options->here),
      live_calls_(options->calls),
      counters_(options->counters),
      shape_(options->shape),
      links_(*links),
      exchange_(*exchange),
      spans_(options->spans),
      stream_(*stream),
      backend_(stream->backend()) {}

absl::Status Router::Attend(const RouteCall& call, AttendRoom room, AttendReport* report) {
  const auto run = [&]() -> absl::Status {
    CKV_RETURN_IF_ERROR(Begin(call));
    while (true) {
      CKV_ASSIGN_OR_RETURN(const bool done, Advance(room));
      if (done) return absl::OkStatus();
      CKV_RETURN_IF_ERROR(Rest());
    }
  };
  absl::Status status = run();
  status.ok() ? Finish(report) : GiveUp();
  return status;
}

absl::Status Router::Warm(const RouteCall& call) {
  exchange_.Clear();
  CKV_RETURN_IF_ERROR(plan_.Begin(call));
  return Prepare(call);
}

absl::Status Router::Begin(const RouteCall& call) {
  taken_ = call;
  call_ = &taken_;
  begin_ = clock_->Now();
  started_ = progress_ = queries_taken_ = ending_ = false;
  producers_ready_ = true;
  held_by_ = nullptr;
  waited_for_.clear();
  merging_count_ = 0;
  if (call.tries != nullptr) call.tries->Attempt(begin_);
  spans_.Begin(call.trace, call.layer, call.q.count, begin_, call.tries);
  exchange_.Clear();
  if (begin_ >= call.deadline)
    return absl::DeadlineExceededError("attend: the deadline had passed before anything was sent");
  CKV_RETURN_IF_ERROR(CheckRouteCall(call, backend_));
  CKV_RETURN_IF_ERROR(plan_.Begin(call));
  CKV_RETURN_IF_ERROR(Prepare(call));
  CKV_RETURN_IF_ERROR(plan_.Cut(call, lines_));
  CKV_RETURN_IF_ERROR(StartFlows());
  exchange_.Start(call.deadline);
  CKV_ASSIGN_OR_RETURN(queries_taken_, TakeQueries());
  return queries_taken_ ? PostAll().status() : absl::OkStatus();
}

absl::Status Router::Prepare(const RouteCall& call) {
  CKV_RETURN_IF_ERROR(ChooseAndConnect(call));
  if (!links_.TargetsChanged()) return absl::OkStatus();
  // Only once: if a holder returns with another target meanwhile, the call's report shows it.
  exchange_.Clear();
  return ChooseAndConnect(call);
}

// Brings up the links of the chosen holders, and finds the handles.
absl::Status Router::ChooseAndConnect(const RouteCall& call) {
  lines_.clear();
  near_bytes_ = near_pairs_ = 0;
  here_us_ = 0;
  links_.BeginAttempt();
  for (const RouteSegment& segment : call.segments) {
    const ReplicaWork work = {Primitive::kRoute, call.q.count, segment.selection.k, call.wire};
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->corpora())
      CKV_RETURN_IF_ERROR(links_.AddCorpus(corpus, work).status());
  }
  links_.Tidy();
  for (const PlannedUnit& unit : plan_.units()) CKV_RETURN_IF_ERROR(FindHandles(call, unit));
  return absl::OkStatus();
}

absl::Status Router::FindHandles(const RouteCall& call, const PlannedUnit& unit) {
  const ContextState& context = *call.segments[unit.segment].context;
  const std::span<PlannedPiece> pieces = plan_.pieces();
  uint32_t part = kContextPartCountMax, group = LinkTable::kNoLink, line = 0;
  LinkTable::ChunkLinks* chunk_links = nullptr;
  HolderLink* link = nullptr;
  const NearTable* const near =
      ReachesNearRows(backend_) ? call.segments[unit.segment].near : nullptr;
  for (uint32_t i = unit.piece_begin; i < unit.piece_end; ++i) {
    const ContextChunk& chunk = context.chunks()[pieces[i].chunk];
    const NearRows* const rows = near == nullptr ? nullptr : (*near)[pieces[i].chunk].get();
    if (rows != nullptr && rows->current() && TakeHere(unit, context, chunk.rotation)) {
      pieces[i].line = kNearLine;
      near_pairs_ += uint64_t{unit.row_count} *
                     (pieces[i].index_begin == kDense ? chunk.token_count : pieces[i].k);
      continue;
    }
    if (chunk.part != part) {
      part = chunk.part;
      group = LinkTable::kNoLink;
      CKV_ASSIGN_OR_RETURN(chunk_links, links_.AddCorpus(context.corpora()[part], {}));
    }
    // Neighbours mostly have the same holders.
    if (chunk_links->group_of_chunk[chunk.ordinal] != group) {
      group = chunk_links->group_of_chunk[chunk.ordinal];
      link = &links_.Ask(*chunk_links, chunk.ordinal);
      line = exchange_.Add(*link);
      CKV_RETURN_IF_ERROR(AddLine(*link, line, call.deadline));
    }
    pieces[i].line = line;
    if (chunk_links->generations[chunk.ordinal] == link->generation()) {
      pieces[i].handle = chunk_links->handles[chunk.ordinal];
      continue;
    }
    auto handle = links_.HandleOf(*chunk_links, chunk.ordinal, call.deadline);
    if (!handle.ok()) return links_.Fail(*link, handle.status());
    pieces[i].handle = *handle;
  }
  return absl::OkStatus();
}

// Brings the link up if it is new to this call.
absl::Status Router::AddLine(HolderLink& link, uint32_t line, Instant deadline) {
  if (line < lines_.size()) return absl::OkStatus();
  if (absl::Status status = links_.EnsureUp(link, deadline); !status.ok())
    return Annotate(status, link.peer().Describe());
  lines_.push_back({.shape = shape_, .wire_version = link.wire_version()});
  return absl::OkStatus();
}

absl::Status Router::StartFlows() {
  frames_.assign(plan_.frames().size(), Frame{});
  merge_late_ = true;
  bytes_sent_ = bytes_received_ = 0;
  target_kernel_.reset();
  targets_differ_ = false;
  // A device's merge has bits of its own. The processor's merge has the same bits for every target.
  if (backend_.home() == MemoryKind::kDevice)
    NoteTarget(KernelTargetIdOf(backend_.kernel_target()));
  if (flows_.size() < lines_.size()) flows_.resize(lines_.size());
  for (uint32_t line = 0; line < lines_.size(); ++line) {
    const PlannedLine& planned = lines_[line];
    const RequestLane& lane = exchange_.link(line).lane();
    const uint64_t slots = lane.shape().slot_count - lane.in_flight();
    flows_[line] = {.next = planned.frame_begin, .copy_out = planned.frames_per_block > slots};
    if (planned.frame_end - planned.frame_begin > slots) merge_late_ = false;
  }
  free_copies_.clear();
  for (uint32_t i = 0; i < copies_.size(); ++i) free_copies_.push_back(i);
  return StartCoverage();
}

absl::StatusOr<bool> Router::Advance(AttendRoom room) {
  progress_ = false;
  if (!started_) {
    CKV_ASSIGN_OR_RETURN(started_, StartHere(room));
    if (!started_) {
      // If a stream is late, a holder whose reply has arrived is not at fault.
      if (clock_->Now() >= call_->deadline) CKV_RETURN_IF_ERROR(exchange_.ReadLate());
      CKV_RETURN_IF_ERROR(exchange_.Check());
      return false;
    }
  }
  CKV_ASSIGN_OR_RETURN(const bool came, exchange_.Collect([&](const Exchange::Reply& reply) {
    return Accept(reply);
  }));
  const uint32_t merged_before = merged_count_;
  CKV_RETURN_IF_ERROR(MergeReady());
  if (merged_count_ < plan_.blocks().size()) {
    CKV_ASSIGN_OR_RETURN(const bool posted, PostAll());
    progress_ = came || posted || merged_count_ > merged_before;
    // Merges end soon, and the answer may then be complete.
    if (!progress_ && merging_count_ == 0) CKV_RETURN_IF_ERROR(exchange_.Check());
    return false;
  }
  if (!ending_) {
    CKV_RETURN_IF_ERROR(coverage_.CheckComplete());
    if (!merge_late_) CKV_RETURN_IF_ERROR(CopyMerged(room()));
    ending_ = true;
  }
  if (!stream_.Ready()) return false;
  CKV_RETURN_IF_ERROR(stream_.Wait());
  if (merged_.size() > kMergedBytesKept) merged_ = BackendMemory();
  return true;
}

absl::Status Router::Rest() {
  if (progress_) return exchange_.EndRound(true);
  if (held_by_ != nullptr) {
    waited_for_.push_back(held_by_);
    return held_by_->Wait();
  }
  return waits_for_stream() ? stream_.Wait() : exchange_.Pause();
}

void Router::GiveUp() {
  stream_.Wait().IgnoreError();  // slots and the caller's memory are in use until then
  for (const Written& frame : written_) {
    HolderLink& link = exchange_.link(frame.line);
    if (link.is_up()) link.lane().Release(frame.slot);
  }
  written_.clear();
  exchange_.GiveUp();
  TrimHere();
  if (!spans_.on()) return;
  links_.would_wait() ? spans_.Leave() : spans_.End(/*failed=*/true, clock_->Now());
}

// Whether this attempt has waited for the stream. Work that its owner added since is not waited
// for.
bool Router::WasWaitedFor(const ComputeStream* after) const {
  return std::find(waited_for_.begin(), waited_for_.end(), after) != waited_for_.end();
}

// A stream of this backend can be ordered before stream_. For one of another backend, this thread
// must wait.
bool Router::MustWaitFor(ComputeStream* after) {
  held_by_ = nullptr;
  if (after == nullptr || WasWaitedFor(after)) return false;
  if (&after->backend() == &backend_ || after->Ready()) return false;
  held_by_ = after;
  return true;
}

// Orders later work of this attempt after the stream, and clears `stream`: work that its owner adds
// from now on does not concern this call.
absl::Status Router::ComeAfter(ComputeStream*& stream) {
  ComputeStream* const after = std::exchange(stream, nullptr);
  if (after == nullptr) return absl::OkStatus();
  producers_ready_ = producers_ready_ && after->Ready();
  return WasWaitedFor(after) ? absl::OkStatus() : backend_.Order(after, stream_);
}

absl::StatusOr<bool> Router::TakeQueries() {
  if (MustWaitFor(taken_.q.after)) return false;
  CKV_RETURN_IF_ERROR(Annotate(CheckQueryValues(taken_.q, taken_.geometry().d_qk), "attend"));
  CKV_RETURN_IF_ERROR(ComeAfter(taken_.q.after));
  return true;
}

// Sends the first frames before any other work is put on the stream. Then attends local rows.
// Returns false if a stream must be waited for first.
absl::StatusOr<bool> Router::StartHere(AttendRoom room) {
  if (!queries_taken_) {
    CKV_ASSIGN_OR_RETURN(queries_taken_, TakeQueries());
    if (!queries_taken_) return false;
    CKV_RETURN_IF_ERROR(PostAll().status());
  }
  CKV_RETURN_IF_ERROR(PostWritten().status());
  if (!written_.empty()) return false;
  target_ = room();
  if (MustWaitFor(target_.after)) return false;
  for (const RouteSegment& segment : call_->segments) {
    for (const OwnRows& own : segment.own) {
      if (MustWaitFor(own.rows.after)) return false;
    }
  }
  CKV_RETURN_IF_ERROR(MakeTarget());
  CKV_RETURN_IF_ERROR(AttendHere());
  return true;
}

// Posts one frame per holder and round, so that every holder has work before any has all of its
// own. Frames that a device is still writing are posted later. Returns whether there was a frame.
absl::StatusOr<bool> Router::PostAll() {
  CKV_ASSIGN_OR_RETURN(bool any, PostWritten());
  for (bool written = true; written;) {
    written = false;
    for (uint32_t line = 0; line < lines_.size(); ++line) {
      CKV_ASSIGN_OR_RETURN(const bool one, WriteNext(line));
      written |= one;
    }
    any |= written;
  }
  return any;
}

absl::StatusOr<bool> Router::WriteNext(uint32_t line) {
  Flow& flow = flows_[line];
  if (flow.next == lines_[line].frame_end) return false;
  // Frames that are written but not posted are too late, and so is this one.
  if (!written_.empty() && clock_->Now() >= call_->deadline) return false;
  const uint32_t ordinal = flow.next;
  const PlannedFrame& planned = plan_.frames()[ordinal];
  if (flow.copy_out && plan_.PartsOf(planned).front().block_begin > first_open_) return false;
  RequestLane& lane = exchange_.link(line).lane();
  const std::optional<uint32_t> slot = lane.Acquire();
  if (!slot) return false;
  absl::StatusOr<RequestHeader> header = plan_.WriteFrame(
      *call_, planned, lines_[line].wire_version, lane.request(*slot), SlotMemory(lane), stream_);
  if (!header.ok()) {
    stream_.Wait().IgnoreError();
    lane.Release(*slot);
    return header.status();
  }
  if (lines_[line].row_count > kShortRowCountMax) header->flags |= kFlagBulk;
  written_.push_back({line, *slot, ordinal, *header});
  ++flow.next;
  CKV_RETURN_IF_ERROR(PostWritten().status());
  return true;
}

absl::StatusOr<bool> Router::PostWritten() {
  if (written_.empty() || !stream_.Ready()) return false;
  CKV_RETURN_IF_ERROR(stream_.Wait());
  producers_ready_ = true;
  // Read only now: the time until the frames were written is not their holders'.
  const Instant now = clock_->Now();
  // Replies that arrived in time must be taken before any holder counts as silent.
  if (now >= call_->deadline) return false;
  for (size_t i = 0; i < written_.size(); ++i) {
    if (absl::Status status = Post(written_[i], now); !status.ok()) {
      written_.erase(written_.begin(), written_.begin() + static_cast<ptrdiff_t>(i) + 1);
      return status;
    }
  }
  written_.clear();
  return true;
}

absl::Status Router::Post(Written& frame, Instant now) {
  Frame& posting = frames_[frame.ordinal];
  RequestHeader& header = frame.header;
  posting.slot = frame.slot;
  posting.flags = header.flags;
  posting.bytes = static_cast<uint32_t>(RequestHeaderBytes(header.version) + header.body_bytes);
  if (spans_.on()) {
    const HolderLink& link = exchange_.link(frame.line);
    spans_.BeginFrame(frame.ordinal, link.peer().id().name, FabricName(link.lane().kind()),
                      posting.bytes, now, header);
  }
  CKV_RETURN_IF_ERROR(exchange_.Post(frame.line, frame.slot, header, frame.ordinal, now));
  posting.state = FrameState::kPosted;
  flows_[frame.line].asked = true;
  bytes_sent_ += posting.bytes;
  return absl::OkStatus();
}

absl::Status Router::Accept(const Exchange::Reply& reply) {
  Flow& flow = flows_[reply.line];
  Frame& arrived = frames_[reply.tag];
  const PlannedFrame& planned = plan_.frames()[reply.tag];
  arrived.state = FrameState::kArrived;
  ExpectedReply expected;
  expected.request_id = reply.header.request_id;
  expected.flags = arrived.flags;
  expected.version = lines_[reply.line].wire_version;
  expected.row_count = planned.row_count;
  expected.partial_count = planned.partial_count;
  expected.attend_bytes = planned.reply_bytes;
  CKV_RETURN_IF_ERROR(
      CheckReplyForHint(reply.header, reply.bytes.subspan(sizeof(ReplyHeader)), expected));
  arrived.reply = reply.bytes.subspan(sizeof(ReplyHeader));
  arrived.memory = SlotMemory(exchange_.link(reply.line).lane());
  bytes_received_ += reply.bytes.size();
  flow.approximate = flow.approximate || (reply.header.flags & kFlagApproximate) != 0;
  // Frames that shared a kernel call each carry its time, so equal neighbours are counted once.
  if (reply.header.compute_ns != flow.last_compute_ns) flow.compute_ns += reply.header.compute_ns;
  flow.last_compute_ns = reply.header.compute_ns;
  NoteTarget(reply.header.kernel_target);
  if (spans_.on()) spans_.EndFrame(reply.tag, reply.bytes.size(), clock_->Now());
  Learn(planned, arrived, reply);
  if (flow.copy_out) {
    if (free_copies_.empty()) {
      free_copies_.push_back(static_cast<uint32_t>(copies_.size()));
      copies_.emplace_back();
    }
    arrived.copy = free_copies_.back();
    free_copies_.pop_back();
    BackendMemory& copy = copies_[arrived.copy];
    CKV_RETURN_IF_ERROR(backend_.Grow(copy, arrived.reply.size(), arrived.memory));
    std::memcpy(copy.data(), arrived.reply.data(), arrived.reply.size());
    arrived.reply = {copy.data(), arrived.reply.size()};
    arrived.state = FrameState::kCopied;
    exchange_.Release(reply.line, reply.slot);
  }
  return TakeParts(reply.tag);
}

void Router::NoteTarget(KernelTargetId target) {
  targets_differ_ |= target == KernelTargetId::kUnknown ||
                     (target_kernel_.has_value() && *target_kernel_ != target);
  target_kernel_ = target;
}

void Router::Finish(AttendReport* report) {
  const Instant now = clock_->Now();
  if (spans_.on()) spans_.End(/*failed=*/false, now);
  const Duration lost = call_->tries == nullptr ? Duration(0) : call_->tries->lost();
  CountCall(now - begin_, lost);
  JudgeRounds();
  if (lost == Duration(0)) JudgeCall(now - begin_);
  double routed_us = 0;  // 0 unless all of it was routed for watched contexts
  for (const RouteSegment& segment : call_->segments) {
    if (!segment.context->watched()) continue;
    if (routed_us == 0 && near_pairs_ == 0 && call_->prompt)
      routed_us = double((now - begin_).count()) / 1e3;
    uint32_t own_count = 0;
    for (const OwnRows& own : segment.own) own_count += own.rows.count;
    segment.context->CountCall({segment.row_count, call_->q.count, segment.selection.k, own_count,
                                call_->wire == PartialDtype::kF32, routed_us});
    // A holder returned with another kernel target than the one that attends its cached rows here.
    if (call_->wire == PartialDtype::kF32 && targets_differ_ && near_pairs_ > 0)
      segment.context->LookNow();
  }
  TrimHere();
  if (report == nullptr) return;
  *report = {};
  for (const Flow& flow : flows()) {
    report->holder_count += flow.asked ? 1 : 0;
    report->compute_ns_max = std::max(report->compute_ns_max, flow.compute_ns);
    report->approximate = report->approximate || flow.approximate;
  }
  CountPairs(*report);
  for (const RouteSegment& segment : call_->segments)
    report->pulled_bytes += segment.context->TakePulled();
  report->bytes_sent = bytes_sent_;
  report->bytes_received = bytes_received_;
  report->targets_differ = targets_differ_;
  if (!targets_differ_ && target_kernel_) report->kernel_target = *target_kernel_;
  report->grade = GradeOf(call_->grade, call_->wire);
  report->same_bits_anywhere =
      call_->wire == PartialDtype::kF32 && !targets_differ_ && !report->approximate;
  if (call_->tries != nullptr) report->failed_attempt_count = call_->tries->attempt_count - 1;
  report->lost = lost;
  report->elapsed = now - begin_ + lost;
}

}  // namespace ckv

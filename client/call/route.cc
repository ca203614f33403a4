// The asking half of the router. One attempt of an attend, in order:
//   plan.Begin  lists what each segment attends
//   Prepare     chooses a replica of each group, brings up its link, and finds the handles
//   plan.Cut    divides the call into blocks, and into frames that fit lane slots
//   StartFlows  decides when to merge: all at the end if every reply fits a slot of its own, else
//               block by block into memory of the router
//   Advance     posts frames while slots are free, takes replies, and merges the blocks whose
//               replies are all there (route_merge.cc)
// If the blocks were merged in memory of the router, the answer is then copied to the caller's
// room.

#include "client/call/route.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// A call merged as it comes keeps its result here first; what a large call took is given back.
constexpr size_t kMergedBytesKept = size_t{16} << 20;
// Memory for the partials of near chunks, and for the queries turned for them: 128 heads over 256
// chunks. Near chunks beyond it are routed.
constexpr uint64_t kNearBytesMax = uint64_t{72} << 20;

// More rows than this for one holder are a bulk call. A default slot holds as many of DeepSeek's,
// and a holder's queue of short requests takes one slot a session while others wait
// (server/dispatch/admission.h).
constexpr uint64_t kShortRowCountMax = 256;

}  // namespace

Router::Router(const LinkOptions* options, LinkTable* links, Exchange* exchange,
               ComputeStream* stream)
    : clock_(options->clock),
      live_here_(options->here),
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
  if (status.ok()) {
    Finish(report);
  } else {
    GiveUp();
  }
  return status;
}

absl::Status Router::Warm(const RouteCall& call) {
  exchange_.Clear();
  CKV_RETURN_IF_ERROR(plan_.Begin(call));
  return Prepare(call);
}

absl::Status Router::Begin(const RouteCall& call) {
  call_ = &call;
  begin_ = clock_->Now();
  started_ = progress_ = false;
  spans_.Begin(call.trace, call.layer, call.q.count, begin_);
  exchange_.Clear();
  if (begin_ >= call.deadline)
    return absl::DeadlineExceededError("attend: the deadline had passed before anything was sent");
  CKV_RETURN_IF_ERROR(CheckRouteCall(call, backend_));
  CKV_RETURN_IF_ERROR(plan_.Begin(call));
  CKV_RETURN_IF_ERROR(Prepare(call));
  CKV_RETURN_IF_ERROR(plan_.Cut(call, lines_));
  CKV_RETURN_IF_ERROR(StartFlows(call));
  exchange_.Start(call.deadline);
  return PostAll().status();
}

absl::Status Router::Prepare(const RouteCall& call) {
  CKV_RETURN_IF_ERROR(ChooseAndConnect(call));
  if (!links_.TargetsChanged()) return absl::OkStatus();
  // Once: a holder that comes back with another target in these moments is told in the report.
  exchange_.Clear();
  return ChooseAndConnect(call);
}

// Brings up the links of the holders to ask, and finds the handles.
absl::Status Router::ChooseAndConnect(const RouteCall& call) {
  lines_.clear();
  near_bytes_ = near_pairs_ = 0;
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
  // Near rows are in host memory.
  const bool reached = backend_.reach().rows.Has(MemoryKind::kHost);
  const NearTable* const near = reached ? call.segments[unit.segment].near : nullptr;
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

absl::Status Router::StartFlows(const RouteCall& /*call*/) {
  frames_.assign(plan_.frames().size(), Frame{});
  merge_late_ = true;
  bytes_sent_ = bytes_received_ = 0;
  target_kernel_.reset();
  targets_differ_ = false;
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

absl::Status Router::StartCoverage() {
  const std::span<const PlannedBlock> blocks = plan_.blocks();
  missing_.assign(blocks.size(), 0);
  merged_block_.assign(blocks.size(), false);
  ready_.clear();
  merged_count_ = first_open_ = 0;
  coverage_.Begin();
  for (uint32_t i = 0; i < blocks.size(); ++i) {
    const PlannedUnit& unit = plan_.units()[blocks[i].unit];
    missing_[i] = unit.share_end - unit.share_begin;
    // The near pieces count as one more share.
    coverage_.AddBlock(missing_[i] + (unit.near_count > 0 ? 1 : 0),
                       unit.piece_end - unit.piece_begin);
    if (missing_[i] == 0) ready_.push_back(i);
  }
  return absl::OkStatus();
}

absl::Status Router::MakeTarget(AttendRoom room) {
  const BackendReach& reach = backend_.reach();
  target_ = room();
  if (!reach.merged.Has(target_.memory) || !reach.partials.Has(target_.memory)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "attend: the answer's place is in %s memory, which kernels of %s do not reach",
        MemoryKindName(target_.memory), backend_.kernel_target()));
  }
  if (merge_late_) return absl::OkStatus();
  const uint32_t rows = call_->q.count, d_v = call_->geometry().d_v;
  CKV_RETURN_IF_ERROR(backend_.Grow(merged_, PartialFloats(rows, d_v) * sizeof(float)));
  target_ = PartialIn(merged_, 0, rows, d_v);
  return absl::OkStatus();
}

// A merge of one part is a copy of its bits, whatever memory they are in.
absl::Status Router::CopyMerged(const PartialView& out) {
  const ConstPartialView whole = target_;
  MergeJob job;
  job.order = MergeOrder::kInTurn;
  job.parts = {&whole, 1};
  job.row_count = call_->q.count;
  job.d_v = call_->geometry().d_v;
  job.out = out;
  return backend_.Merge({&job, 1}, stream_);
}

absl::StatusOr<bool> Router::Advance(AttendRoom room) {
  if (!started_) {
    started_ = true;
    CKV_RETURN_IF_ERROR(MakeTarget(room));
    CKV_RETURN_IF_ERROR(AttendHere());
  }
  CKV_ASSIGN_OR_RETURN(const bool came, exchange_.Collect([&](const Exchange::Reply& reply) {
    return Accept(reply);
  }));
  const uint32_t merged_before = merged_count_;
  CKV_RETURN_IF_ERROR(MergeReady());
  if (merged_count_ < plan_.blocks().size()) {
    CKV_ASSIGN_OR_RETURN(const bool posted, PostAll());
    progress_ = came || posted || merged_count_ > merged_before;
    if (!progress_) CKV_RETURN_IF_ERROR(exchange_.Check());
    return false;
  }
  CKV_RETURN_IF_ERROR(coverage_.CheckComplete());
  if (!merge_late_) CKV_RETURN_IF_ERROR(CopyMerged(room()));
  CKV_RETURN_IF_ERROR(stream_.Wait());
  if (merged_.size() > kMergedBytesKept) merged_ = BackendMemory();
  return true;
}

absl::Status Router::Rest() { return progress_ ? exchange_.EndRound(true) : exchange_.Pause(); }

// Posts one frame per holder and round, so that every holder has work before any has all of its
// own.
absl::StatusOr<bool> Router::PostAll() {
  bool any = false;
  for (bool posted = true; posted;) {
    posted = false;
    for (uint32_t line = 0; line < lines_.size(); ++line) {
      CKV_ASSIGN_OR_RETURN(const bool one, PostNext(line));
      posted |= one;
    }
    any |= posted;
  }
  return any;
}

absl::StatusOr<bool> Router::PostNext(uint32_t line) {
  Flow& flow = flows_[line];
  if (flow.next == lines_[line].frame_end) return false;
  const uint32_t ordinal = flow.next;
  const PlannedFrame& planned = plan_.frames()[ordinal];
  if (flow.copy_out && plan_.PartsOf(planned).front().block_begin > first_open_) return false;
  const Instant now = clock_->Now();
  if (now >= call_->deadline) return false;
  RequestLane& lane = exchange_.link(line).lane();
  const std::optional<uint32_t> slot = lane.Acquire();
  if (!slot) return false;
  absl::StatusOr<RequestHeader> written =
      plan_.WriteFrame(*call_, planned, lines_[line].wire_version, lane.request(*slot), stream_);
  absl::Status ready = written.status();
  ready.Update(stream_.Wait());
  if (!ready.ok()) {
    lane.Release(*slot);
    return ready;
  }
  RequestHeader& header = *written;
  if (lines_[line].row_count > kShortRowCountMax) header.flags |= kFlagBulk;
  Frame& posting = frames_[ordinal];
  posting.slot = *slot;
  posting.flags = header.flags;
  posting.bytes = static_cast<uint32_t>(RequestHeaderBytes(header.version) + header.body_bytes);
  if (spans_.on()) {
    spans_.BeginFrame(ordinal, exchange_.link(line).peer().id().name, FabricName(lane.kind()),
                      posting.bytes, now, header);
  }
  CKV_RETURN_IF_ERROR(exchange_.Post(line, *slot, header, ordinal, now));
  posting.state = FrameState::kPosted;
  ++flow.next;
  flow.asked = true;
  bytes_sent_ += posting.bytes;
  return true;
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
  bytes_received_ += reply.bytes.size();
  flow.approximate = flow.approximate || (reply.header.flags & kFlagApproximate) != 0;
  // Frames that shared a kernel call carry its time each: equal neighbours are counted once.
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
    std::vector<std::byte>& copy = copies_[arrived.copy];
    copy.assign(arrived.reply.begin(), arrived.reply.end());
    arrived.reply = copy;
    arrived.state = FrameState::kCopied;
    exchange_.Release(reply.line, reply.slot);
  }
  return TakeParts(reply.tag);
}

// Notes what the frame brought. Each part counts once for each of its blocks (I1).
absl::Status Router::TakeParts(uint32_t frame_ordinal) {
  Frame& frame = frames_[frame_ordinal];
  frame.open_block_count = 0;
  for (const PlannedPart& part : plan_.PartsOf(plan_.frames()[frame_ordinal])) {
    const PlannedShare& share = plan_.shares()[part.share];
    for (uint32_t block = part.block_begin; block < part.block_end; ++block) {
      const uint32_t place = part.share - plan_.units()[share.unit].share_begin;
      CKV_RETURN_IF_ERROR(coverage_.Cover(block, place, share.piece_count));
      if (--missing_[block] == 0) ready_.push_back(block);
      ++frame.open_block_count;
    }
  }
  return absl::OkStatus();
}

void Router::NoteTarget(KernelTargetId target) {
  targets_differ_ |= target == KernelTargetId::kUnknown ||
                     (target_kernel_.has_value() && *target_kernel_ != target);
  target_kernel_ = target;
}

// Tells the cost model of its holder what an answer cost.
void Router::Learn(const PlannedFrame& planned, const Frame& frame, const Exchange::Reply& reply) {
  HolderPeer& peer = exchange_.link(reply.line).peer();
  const FabricKind fabric = exchange_.link(reply.line).lane().kind();
  const uint64_t bytes = frame.bytes + reply.bytes.size();
  if (planned.index_count == 0) {
    uint64_t row_tokens = 0;
    for (const PlannedPart& part : plan_.PartsOf(planned)) {
      const PlannedShare& share = plan_.shares()[part.share];
      const PlannedUnit& unit = plan_.units()[share.unit];
      const std::span<const ContextChunk> chunks = call_->segments[unit.segment].context->chunks();
      uint64_t tokens = 0;
      for (uint32_t left = share.node_count, n = share.first_node; left > 0;
           --left, n = plan_.nodes()[n].next) {
        const PlannedNode& node = plan_.nodes()[n];
        for (uint32_t i = node.piece_begin; i < node.piece_end; ++i)
          tokens += chunks[plan_.pieces()[i].chunk].token_count;
      }
      row_tokens += tokens * part.row_count;
    }
    peer.ObserveAttend({.geometry = call_->geometry(),
                        .fabric = fabric,
                        .rows = planned.row_count,
                        .tokens = row_tokens / planned.row_count,
                        .bytes = bytes,
                        .compute_ns = reply.header.compute_ns,
                        .posted = reply.posted,
                        .whole = Timed() && plan_.frames().size() == 1},
                       *clock_);
  }
  peer.queue_ns.store(reply.header.queue_ns, std::memory_order_relaxed);
  if (!Timed()) return;
  const Duration on_lane =
      clock_->Now() - reply.posted -
      std::chrono::nanoseconds(uint64_t{reply.header.compute_ns} + reply.header.queue_ns);
  if (counters_ != nullptr && !call_->is_trial)
    counters_->lanes[static_cast<size_t>(fabric)].Add(on_lane);
  // A lane over a fabric that is no longer the chosen one tells nothing about it.
  if (fabric == peer.fabric_kind.load(std::memory_order_relaxed))
    peer.fabric.Observe(bytes, double(on_lane.count()) / 1e3);
}

// Takes memory for one more near piece, if there is enough.
bool Router::TakeHere(const PlannedUnit& unit, const ContextState& context, uint32_t rotation) {
  const Geometry& geometry = context.geometry();
  uint64_t row_bytes = (geometry.d_v + 2) * sizeof(float);
  if (!context.rotations()[rotation].is_identity()) row_bytes += geometry.query_row_bytes();
  const uint64_t bytes = near_bytes_ + unit.row_count * row_bytes;
  if (bytes > kNearBytesMax) return false;
  near_bytes_ = bytes;
  return true;
}

void Router::TrimHere() {
  if (here_.size() > kNearBytesMax) here_ = BackendMemory();
  if (near_q_.size() > kNearBytesMax) near_q_ = BackendMemory();
}

void Router::CountPairs(AttendReport& report) const {
  for (const PlannedUnit& unit : plan_.units()) {
    const RouteSegment& segment = call_->segments[unit.segment];
    for (const PlannedPiece& piece : plan_.PiecesOf(unit)) {
      const uint32_t rows = piece.index_begin == kDense
                                ? segment.context->chunks()[piece.chunk].token_count
                                : piece.k;
      (piece.line == kNearLine ? report.near_pairs : report.routed_pairs) +=
          uint64_t{unit.row_count} * rows;
    }
  }
  report.own_pairs += OwnPairs();
}

void Router::CountCall(Duration elapsed) {
  if (counters_ == nullptr || call_->is_trial) return;
  const bool asked =
      std::any_of(flows().begin(), flows().end(), [](const Flow& flow) { return flow.asked; });
  (asked ? counters_->route : counters_->near).Add(elapsed);
  for (const RouteSegment& segment : call_->segments) {
    for (const std::shared_ptr<const Corpus>& corpus : segment.context->corpora())
      counters_->corpora.Count(*corpus, segment.row_count);
  }
}

void Router::Finish(AttendReport* report) {
  const Duration elapsed = clock_->Now() - begin_;
  if (spans_.on()) spans_.End(/*failed=*/false, begin_ + elapsed);
  CountCall(elapsed);
  double routed_us = 0;  // 0 unless all of it was routed for watched contexts
  for (const RouteSegment& segment : call_->segments) {
    if (!segment.context->watched()) continue;
    if (routed_us == 0 && near_pairs_ == 0 && call_->prompt)
      routed_us = double(elapsed.count()) / 1e3;
    uint32_t own_count = 0;
    for (const OwnRows& own : segment.own) own_count += own.rows.count;
    segment.context->CountCall({segment.row_count, call_->q.count, segment.selection.k, own_count,
                                call_->wire == PartialDtype::kF32, routed_us});
    // A holder came back with another kernel target than its near rows are attended with here.
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
  report->elapsed = elapsed;
}

}  // namespace ckv

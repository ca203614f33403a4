// The asking half of the router. One attempt of an Attend, in order:
//   Begin       the plan lists the chunks of the call
//   Prepare     chooses a replica of each group, brings up its link, and finds the handles
//   Cut         the plan divides the call into batches and blocks that fit lane slots
//   StartFlows  gives each holder its frames, and decides when to merge: all at the end if every
//               reply fits a slot of its own, else block by block into memory of the router
//   Run         until every block is merged: posts frames while slots are free, takes replies, and
//               merges the blocks whose replies are all there (route_merge.cc)
// If the blocks were merged in memory of the router, the answer is then copied to the caller's
// room.

#include "client/call/route.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "attention/merge.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"

namespace ckv {
namespace {

// A call merged as it comes keeps its result here first; what a large call took is given back.
constexpr size_t kMergedFloatsKept = size_t{4} << 20;

}  // namespace

Router::Router(const LinkOptions* options, LinkTable* links, Exchange* exchange)
    : clock_(options->clock), shape_(options->shape), links_(*links), exchange_(*exchange) {}

absl::Status Router::Attend(const AttendCall& call, AttendRoom room, AttendReport* report) {
  const Instant begin = clock_->Now();
  if (begin >= call.deadline)
    return absl::DeadlineExceededError("attend: the deadline had passed before anything was sent");
  exchange_.Clear();
  CKV_RETURN_IF_ERROR(plan_.Begin(call));
  CKV_RETURN_IF_ERROR(Prepare(call));
  CKV_RETURN_IF_ERROR(plan_.Cut(call, shape_, static_cast<uint32_t>(flow_of_rank_.size())));
  CKV_RETURN_IF_ERROR(StartFlows(call));

  if (absl::Status status = Run(call, room); !status.ok()) {
    exchange_.GiveUp();
    return status;
  }
  if (!merge_late_) {
    const PartialView out = room();
    const size_t rows = call.q.count, d_v = call.corpus->geometry.d_v;
    std::memcpy(out.o, target_.o, rows * d_v * sizeof(float));
    std::memcpy(out.m, target_.m, rows * sizeof(float));
    std::memcpy(out.l, target_.l, rows * sizeof(float));
    if (merged_.size() > kMergedFloatsKept) merged_ = {};
  }
  if (report != nullptr) FillReport(report, begin);
  return absl::OkStatus();
}

// Ranks the groups in the order in which the call first names them, brings up the links of the
// holders to ask, and finds the handles.
absl::Status Router::Prepare(const AttendCall& call) {
  const ReplicaWork work = {Primitive::kRoute, call.q.count, call.selection.k, call.wire};
  CKV_ASSIGN_OR_RETURN(LinkTable::ChunkLinks * chunk_links, links_.LinksFor(call.corpus, work));
  const size_t group_count =
      call.per_chunk ? chunk_links->links.size() : chunk_links->groups.size();
  rank_of_group_.assign(group_count, PlannedPiece::kNoGroup);
  flow_of_rank_.clear();
  for (PlannedPiece& piece : plan_.pieces()) {
    const uint32_t group = chunk_links->group_of_chunk[piece.chunk];
    if (group == LinkTable::kNoLink) continue;
    HolderLink& link = links_.Ask(*chunk_links, piece.chunk);
    uint32_t& rank = rank_of_group_[call.per_chunk ? chunk_links->LinkOf(piece.chunk) : group];
    if (rank == PlannedPiece::kNoGroup) {
      const size_t lines_before = exchange_.line_count();
      rank = static_cast<uint32_t>(flow_of_rank_.size());
      flow_of_rank_.push_back(exchange_.Add(link));
      if (exchange_.line_count() > lines_before) {
        if (absl::Status status = links_.EnsureUp(link, call.deadline); !status.ok())
          return Annotate(status, link.peer().Describe());
      }
    }
    auto handle = links_.HandleOf(*chunk_links, piece.chunk, call.deadline);
    if (!handle.ok()) return links_.Fail(link, handle.status());
    piece.group = rank;
    piece.handle = *handle;
  }
  return absl::OkStatus();
}

absl::Status Router::StartFlows(const AttendCall& call) {
  const std::span<const PlannedBatch> batches = plan_.batches();
  const auto block_count = static_cast<uint32_t>(plan_.blocks().size());
  frames_.assign(size_t{block_count} * batches.size(), Frame{});
  lists_.clear();
  next_merge_ = 0;
  merge_late_ = true;
  bytes_sent_ = bytes_received_ = 0;
  if (flows_.size() < exchange_.line_count()) flows_.resize(exchange_.line_count());
  for (Flow& flow : flows()) flow.batches.clear();
  for (uint32_t batch = 0; batch < batches.size(); ++batch)
    flows_[flow_of_rank_[batches[batch].group]].batches.push_back(batch);
  for (uint32_t line = 0; line < exchange_.line_count(); ++line) {
    Flow& flow = flows_[line];
    flow.block = 0;
    flow.next = 0;
    flow.asked = false;
    flow.approximate = false;
    flow.compute_ns = 0;
    flow.last_compute_ns = 0;
    const RequestLane& lane = exchange_.link(line).lane();
    const uint64_t slots = lane.shape().slot_count - lane.in_flight();
    const uint64_t batch_count = flow.batches.size();
    flow.copy_out = batch_count > slots;
    flow.frame_count = batch_count * block_count;
    if (batch_count * block_count > slots) merge_late_ = false;
  }
  if (copies_.size() < batches.size()) copies_.resize(batches.size());
  coverage_.Begin(static_cast<uint32_t>(plan_.pieces().size()), call.q.count);
  // A chunk without tokens adds nothing to any row, so its rows are covered at once.
  for (uint32_t i = 0; i < plan_.pieces().size(); ++i) {
    if (plan_.pieces()[i].group == PlannedPiece::kNoGroup)
      CKV_RETURN_IF_ERROR(coverage_.Cover(i, 0, call.q.count));
  }
  return absl::OkStatus();
}

void Router::MakeTarget(const AttendCall& call, AttendRoom room) {
  if (merge_late_) {
    target_ = room();
    return;
  }
  const size_t rows = call.q.count, d_v = call.corpus->geometry.d_v;
  merged_.resize(rows * (d_v + 2));
  target_ = {merged_.data(), merged_.data() + rows * d_v, merged_.data() + rows * (d_v + 1),
             PartialDtype::kF32};
}

absl::Status Router::Run(const AttendCall& call, AttendRoom room) {
  const auto accept = [&](const Exchange::Reply& reply) { return Accept(call, reply); };
  exchange_.Start(call.deadline);
  for (bool first = true;; first = false) {
    CKV_ASSIGN_OR_RETURN(const bool posted, PostAll(call));
    if (first) MakeTarget(call, room);
    CKV_ASSIGN_OR_RETURN(const bool came, exchange_.Collect(accept));
    CKV_RETURN_IF_ERROR(MergeReady(call, target_));
    if (next_merge_ == plan_.blocks().size()) break;
    CKV_RETURN_IF_ERROR(exchange_.EndRound(posted || came));
  }
  return coverage_.CheckComplete();
}

// Posts one frame per holder and round, so that every holder has work before any has all of its
// own.
absl::StatusOr<bool> Router::PostAll(const AttendCall& call) {
  bool any = false;
  for (bool posted = true; posted;) {
    posted = false;
    for (uint32_t line = 0; line < exchange_.line_count(); ++line) {
      CKV_ASSIGN_OR_RETURN(const bool one, PostNext(call, line));
      posted |= one;
    }
    any |= posted;
  }
  return any;
}

absl::StatusOr<bool> Router::PostNext(const AttendCall& call, uint32_t line) {
  Flow& flow = flows_[line];
  if (flow.batches.empty() || flow.block == plan_.blocks().size()) return false;
  if (flow.copy_out && flow.block > next_merge_) return false;
  RequestLane& lane = exchange_.link(line).lane();
  const std::optional<uint32_t> slot = lane.Acquire();
  if (!slot) return false;
  const uint32_t batch = flow.batches[flow.next];
  const uint32_t index = flow.block * static_cast<uint32_t>(plan_.batches().size()) + batch;
  Frame& posting = frames_[index];
  const PlannedBlock& block = plan_.blocks()[flow.block];
  // Two lists grow at once: the empty pieces go behind the ones sent.
  empty_.clear();
  posting.sent_begin = static_cast<uint32_t>(lists_.size());
  RequestHeader header =
      plan_.WriteFrame(call, block, plan_.batches()[batch], lane.request(*slot), &lists_, &empty_);
  posting.sent_end = posting.empty_begin = static_cast<uint32_t>(lists_.size());
  lists_.insert(lists_.end(), empty_.begin(), empty_.end());
  posting.empty_end = static_cast<uint32_t>(lists_.size());
  if (++flow.next == flow.batches.size()) {
    flow.next = 0;
    ++flow.block;
  }
  if (header.piece_count == 0) {
    lane.Release(*slot);
    posting.state = FrameState::kEmpty;
    return true;
  }
  posting.slot = *slot;
  if (flow.frame_count > 1) header.flags |= kFlagBulk;
  posting.flags = header.flags;
  posting.bytes = static_cast<uint32_t>(sizeof(header)) + header.body_bytes;
  CKV_RETURN_IF_ERROR(exchange_.Post(line, *slot, header, index, clock_->Now()));
  posting.state = FrameState::kPosted;
  flow.asked = true;
  bytes_sent_ += posting.bytes;
  return true;
}

absl::Status Router::Accept(const AttendCall& call, const Exchange::Reply& reply) {
  Flow& flow = flows_[reply.line];
  Frame& arrived = frames_[reply.tag];
  const auto batch_count = static_cast<uint32_t>(plan_.batches().size());
  arrived.state = FrameState::kArrived;
  arrived.reply = reply.bytes;
  ExpectedReply expected;
  expected.request_id = reply.header.request_id;
  expected.flags = arrived.flags;
  expected.row_count = plan_.blocks()[reply.tag / batch_count].row_count;
  expected.partial_count = call.per_chunk ? arrived.sent_end - arrived.sent_begin : 1;
  expected.d_v = call.corpus->geometry.d_v;
  CKV_RETURN_IF_ERROR(
      CheckReplyForHint(reply.header, reply.bytes.subspan(sizeof(ReplyHeader)), expected));
  bytes_received_ += reply.bytes.size();
  flow.approximate = flow.approximate || (reply.header.flags & kFlagApproximate) != 0;
  // Frames that shared a kernel call carry its time each: equal neighbours are counted once.
  if (reply.header.compute_ns != flow.last_compute_ns) flow.compute_ns += reply.header.compute_ns;
  flow.last_compute_ns = reply.header.compute_ns;
  Learn(call, arrived, reply);
  if (flow.copy_out) {
    std::vector<std::byte>& copy = copies_[reply.tag % batch_count];
    copy.assign(reply.bytes.begin(), reply.bytes.end());
    arrived.reply = copy;
    arrived.state = FrameState::kCopied;
    exchange_.Release(reply.line, reply.slot);
  }
  return absl::OkStatus();
}

// Tells the cost model of its holder what an answer cost.
void Router::Learn(const AttendCall& call, const Frame& frame, const Exchange::Reply& reply) {
  HolderPeer& peer = exchange_.link(reply.line).peer();
  const FabricKind fabric = exchange_.link(reply.line).lane().kind();
  const uint64_t bytes = frame.bytes + reply.bytes.size();
  if (!call.selection.present()) {
    uint64_t tokens = 0;
    for (uint32_t i = frame.sent_begin; i < frame.sent_end; ++i)
      tokens += plan_.pieces()[lists_[i]].token_count;
    peer.ObserveAttend({.geometry = call.corpus->geometry,
                        .fabric = fabric,
                        .rows = plan_.blocks()[reply.tag / plan_.batches().size()].row_count,
                        .tokens = tokens,
                        .bytes = bytes,
                        .compute_ns = reply.header.compute_ns,
                        .posted = reply.posted,
                        .whole = exchange_.line_count() == 1 && flows_[0].frame_count == 1},
                       *clock_);
  }
  peer.queue_ns.store(reply.header.queue_ns, std::memory_order_relaxed);
  const double held_us = (double(reply.header.compute_ns) + double(reply.header.queue_ns)) / 1e3;
  // A lane over a fabric that is no longer the chosen one tells nothing about it.
  if (fabric == peer.fabric_kind.load(std::memory_order_relaxed)) {
    peer.fabric.Observe(bytes, double((clock_->Now() - reply.posted).count()) / 1e3 - held_us);
  }
}

void Router::FillReport(AttendReport* report, Instant begin) const {
  *report = {};
  for (const Flow& flow : std::span(flows_).first(exchange_.line_count())) {
    report->holder_count += flow.asked ? 1 : 0;
    report->compute_ns_max = std::max(report->compute_ns_max, flow.compute_ns);
    report->approximate = report->approximate || flow.approximate;
  }
  report->bytes_sent = bytes_sent_;
  report->bytes_received = bytes_received_;
  report->elapsed = clock_->Now() - begin;
}

}  // namespace ckv

#include "client/route.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "attention/merge.h"
#include "client/retry.h"
#include "proto/status.h"

namespace ckv {
namespace {

constexpr size_t kCompletionCountMax = 16;  // looked at per poll
// A call merged as it comes keeps its result here first; what a large call took is given back.
constexpr size_t kMergedFloatsKept = size_t{4} << 20;

}  // namespace

Router::Router(const LinkOptions* options, PeerTable* peers, Duration spin_max,
               RouteCounters* counters)
    : clock_(options->clock),
      shape_(options->shape),
      counters_(counters),
      links_(options, peers),
      wait_(options->clock, spin_max),
      completions_(kCompletionCountMax) {}

absl::Status Router::Attend(const AttendCall& call, AttendRoom room, AttendReport* report,
                            bool* stale) {
  *stale = false;
  const Instant begin = clock_->Now();
  if (begin >= call.deadline)
    return absl::DeadlineExceededError("attend: the deadline had passed before anything was sent");
  flow_count_ = 0;
  CKV_RETURN_IF_ERROR(plan_.Begin(call));
  CKV_RETURN_IF_ERROR(Prepare(call, stale));
  CKV_RETURN_IF_ERROR(plan_.Cut(call, shape_, static_cast<uint32_t>(flow_of_rank_.size())));
  CKV_RETURN_IF_ERROR(StartFlows(call));

  absl::Status status = Exchange(call, room, stale);
  if (!status.ok()) {
    AbandonAll();
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

// Ranks the groups in the order in which the call first names them, brings the links of those who
// are asked up and finds the handles.
absl::Status Router::Prepare(const AttendCall& call, bool* stale) {
  const ReplicaWork work = {Primitive::kRoute, call.q.count, call.selection.k, call.wire};
  CKV_ASSIGN_OR_RETURN(LinkTable::Route * route, links_.RouteOf(call.corpus, work));
  const size_t group_count = call.per_chunk ? route->links.size() : route->groups.size();
  rank_of_group_.assign(group_count, PlannedPiece::kNoGroup);
  flow_of_rank_.clear();
  for (PlannedPiece& piece : plan_.pieces()) {
    const uint32_t group = route->group_of_chunk[piece.chunk];
    if (group == LinkTable::kNoLink) continue;
    HolderLink& link = links_.Ask(*route, piece.chunk);
    uint32_t& rank = rank_of_group_[call.per_chunk ? route->LinkOf(piece.chunk) : group];
    if (rank == PlannedPiece::kNoGroup) {
      const size_t flows_before = flow_count_;
      rank = static_cast<uint32_t>(flow_of_rank_.size());
      flow_of_rank_.push_back(FlowOf(&link));
      if (flow_count_ > flows_before) {
        if (absl::Status status = links_.EnsureUp(link, call.deadline); !status.ok())
          return Annotate(status, link.peer().Describe());
      }
    }
    auto handle = links_.HandleOf(*route, piece.chunk, call.deadline);
    if (!handle.ok()) {
      *stale = absl::IsNotFound(handle.status()) || absl::IsAborted(handle.status());
      return links_.Fail(link, handle.status());
    }
    piece.group = rank;
    piece.handle = *handle;
  }
  return absl::OkStatus();
}

// An ordinal in flows_; a new one for a link that has none yet.
uint32_t Router::FlowOf(HolderLink* link) {
  for (uint32_t i = 0; i < flow_count_; ++i) {
    if (flows_[i].link == link) return i;
  }
  if (flows_.size() == flow_count_) flows_.emplace_back();
  flows_[flow_count_].link = link;
  return static_cast<uint32_t>(flow_count_++);
}

absl::Status Router::StartFlows(const AttendCall& call) {
  const std::span<const PlannedBatch> batches = plan_.batches();
  const auto block_count = static_cast<uint32_t>(plan_.blocks().size());
  frames_.assign(size_t{block_count} * batches.size(), Frame{});
  lists_.clear();
  next_merge_ = 0;
  merge_late_ = true;
  bytes_sent_ = bytes_received_ = 0;
  for (Flow& flow : flows()) flow.batches.clear();
  for (uint32_t batch = 0; batch < batches.size(); ++batch)
    flows_[flow_of_rank_[batches[batch].group]].batches.push_back(batch);
  for (Flow& flow : flows()) {
    flow.block = 0;
    flow.next = 0;
    flow.outstanding = 0;
    flow.asked = false;
    flow.strange = false;
    flow.compute_ns = 0;
    flow.last_compute_ns = 0;
    RequestLane& lane = flow.link->lane();
    flow.frame_of_slot.assign(lane.shape().slot_count, kNoFrame);
    const uint64_t slots = lane.shape().slot_count - lane.in_flight();
    const uint64_t batch_count = flow.batches.size();
    flow.copy_out = batch_count > slots;
    flow.frame_count = batch_count * block_count;
    if (batch_count * block_count > slots) merge_late_ = false;
  }
  if (copies_.size() < batches.size()) copies_.resize(batches.size());
  coverage_.Begin(static_cast<uint32_t>(plan_.pieces().size()), call.q.count);
  // Chunks without tokens have nothing to say of any row.
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

absl::Status Router::Exchange(const AttendCall& call, AttendRoom room, bool* stale) {
  wait_.Begin(flows().size());
  for (bool first = true;; first = false) {
    CKV_ASSIGN_OR_RETURN(const bool posted, PostAll(call));
    if (first) MakeTarget(call, room);
    bool any_came = false;
    waiting_.clear();
    for (Flow& flow : flows()) {
      if (flow.outstanding == 0) continue;
      CKV_ASSIGN_OR_RETURN(const bool came, Collect(call, flow, stale));
      any_came |= came;
      if (flow.outstanding > 0) waiting_.push_back(&flow.link->lane());
    }
    if (any_came) wait_.Came();
    CKV_RETURN_IF_ERROR(MergeReady(call, target_));
    if (next_merge_ == plan_.blocks().size()) break;
    if (posted || any_came) {
      wait_.Again();
      continue;
    }
    for (Flow& flow : flows()) {
      if (absl::Status status = flow.link->lane().status(); !status.ok())
        return links_.Fail(*flow.link, status);
    }
    if (absl::Status status = wait_.Pause(waiting_, call.deadline); !status.ok()) {
      for (Flow& flow : flows()) {
        if (flow.outstanding > 0) links_.NoteSilent(*flow.link);
      }
      return Annotate(status, DescribeWaiting());
    }
  }
  return coverage_.CheckComplete();
}

std::string Router::DescribeWaiting() {
  std::vector<const HolderPeer*> peers;
  for (const Flow& flow : flows()) {
    if (flow.outstanding > 0) peers.push_back(&flow.link->peer());
  }
  return DescribePeers(peers);
}

// One frame a holder and round, so that every holder has work before any has all of it.
absl::StatusOr<bool> Router::PostAll(const AttendCall& call) {
  bool any = false;
  for (bool posted = true; posted;) {
    posted = false;
    for (Flow& flow : flows()) {
      CKV_ASSIGN_OR_RETURN(const bool one, PostNext(call, flow));
      posted |= one;
    }
    any |= posted;
  }
  return any;
}

absl::StatusOr<bool> Router::PostNext(const AttendCall& call, Flow& flow) {
  if (flow.batches.empty() || flow.block == plan_.blocks().size()) return false;
  if (flow.copy_out && flow.block > next_merge_) return false;
  RequestLane& lane = flow.link->lane();
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
  posting.posted = clock_->Now();
  posting.slot = *slot;
  if (flow.frame_count > 1) header.flags |= kFlagBulk;
  posting.flags = header.flags;
  posting.request_id = header.request_id = flow.link->NextRequestId();
  header.epoch = flow.link->epoch().value;
  header.session = flow.link->session().value;
  header.deadline_us = RemainingUs(call.deadline, posting.posted);
  EncodeHeader(header, lane.request(*slot));
  posting.bytes = static_cast<uint32_t>(sizeof(header)) + header.body_bytes;
  if (absl::Status status = lane.Post(*slot, posting.bytes); !status.ok())
    return links_.Fail(*flow.link, status);
  posting.state = FrameState::kPosted;
  flow.frame_of_slot[*slot] = index;
  flow.asked = true;
  ++flow.outstanding;
  flow.link->peer().in_flight.fetch_add(1, std::memory_order_relaxed);
  bytes_sent_ += posting.bytes;
  return true;
}

absl::StatusOr<bool> Router::Collect(const AttendCall& call, Flow& flow, bool* stale) {
  RequestLane& lane = flow.link->lane();
  const size_t count = lane.Poll(completions_);
  absl::Status first_error;
  // All of them are taken, errors or not: a slot that completed can no longer be abandoned.
  for (size_t i = 0; i < count; ++i) {
    Completion done = completions_[i];
    if (done.slot >= flow.frame_of_slot.size() || flow.frame_of_slot[done.slot] == kNoFrame ||
        frames_[flow.frame_of_slot[done.slot]].state != FrameState::kPosted) {
      counters_->discarded.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    Frame& arrived = frames_[flow.frame_of_slot[done.slot]];
    done.bytes = std::min(done.bytes, lane.shape().reply_bytes_max);
    const auto header = DecodeReplyHeader(lane.reply(done.slot).first(done.bytes));
    if (!header.ok()) {
      flow.strange = true;
      first_error.Update(header.status());
      continue;
    }
    // The reply to an earlier request of this slot, late or twice: the awaited one is to come (I1).
    if (header->request_id != arrived.request_id) {
      flow.strange = true;
      counters_->discarded.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    first_error.Update(Accept(call, flow, arrived, done, *header));
  }
  if (!first_error.ok()) {
    *stale = absl::IsNotFound(first_error) || absl::IsAborted(first_error);
    return links_.Fail(*flow.link, first_error);
  }
  return count > 0;
}

absl::Status Router::Accept(const AttendCall& call, Flow& flow, Frame& arrived,
                            const Completion& done, const ReplyHeader& header) {
  RequestLane& lane = flow.link->lane();
  HolderPeer& peer = flow.link->peer();
  const std::span<const std::byte> reply = lane.reply(done.slot).first(done.bytes);
  const auto index = static_cast<uint32_t>(&arrived - frames_.data());
  const auto batch_count = static_cast<uint32_t>(plan_.batches().size());
  // From here on the slot is ours again, whatever the reply says.
  --flow.outstanding;
  peer.in_flight.fetch_sub(1, std::memory_order_relaxed);
  arrived.state = FrameState::kArrived;
  arrived.reply = reply;
  ExpectedReply expected;
  expected.request_id = arrived.request_id;
  expected.flags = arrived.flags;
  expected.row_count = plan_.blocks()[index / batch_count].row_count;
  expected.partial_count = call.per_chunk ? arrived.sent_end - arrived.sent_begin : 1;
  expected.d_v = call.corpus->geometry.d_v;
  CKV_RETURN_IF_ERROR(CheckReplyForHint(header, reply.subspan(sizeof(ReplyHeader)), expected));
  bytes_received_ += done.bytes;
  flow.approximate = flow.approximate || (header.flags & kFlagApproximate) != 0;
  peer.Answered();
  // Frames that shared a kernel call carry its time each: equal neighbours are counted once.
  if (header.compute_ns != flow.last_compute_ns) flow.compute_ns += header.compute_ns;
  flow.last_compute_ns = header.compute_ns;
  if (!call.selection.present()) {
    const auto sent =
        std::span(lists_).subspan(arrived.sent_begin, arrived.sent_end - arrived.sent_begin);
    peer.ObserveAttend({.geometry = call.corpus->geometry,
                        .fabric = lane.kind(),
                        .rows = expected.row_count,
                        .pieces = plan_.pieces(),
                        .sent = sent,
                        .bytes = arrived.bytes + done.bytes,
                        .compute_ns = header.compute_ns,
                        .posted = arrived.posted,
                        .whole = flow_count_ == 1 && flow.frame_count == 1},
                       *clock_);
  }
  peer.queue_ns.store(header.queue_ns, std::memory_order_relaxed);
  const double held_us = (double(header.compute_ns) + double(header.queue_ns)) / 1e3;
  // A lane from before the fabric was chosen anew tells nothing of that one.
  if (lane.kind() == peer.fabric_kind.load(std::memory_order_relaxed)) {
    peer.fabric.Observe(arrived.bytes + done.bytes,
                        double((clock_->Now() - arrived.posted).count()) / 1e3 - held_us);
  }
  if (flow.copy_out) {
    std::vector<std::byte>& copy = copies_[index % batch_count];
    copy.assign(reply.begin(), reply.end());
    arrived.reply = copy;
    arrived.state = FrameState::kCopied;
    flow.frame_of_slot[arrived.slot] = kNoFrame;
    lane.Release(arrived.slot);
  }
  return absl::OkStatus();
}

void Router::AbandonAll() {
  for (Flow& flow : flows()) {
    // Which of its slots are done is not known for sure, and a lane holds us to that: it goes.
    if (flow.strange) flow.link->Close();
    for (const uint32_t index : flow.frame_of_slot) {
      if (index == kNoFrame) continue;
      const bool outstanding = frames_[index].state == FrameState::kPosted;
      if (outstanding) flow.link->peer().in_flight.fetch_sub(1, std::memory_order_relaxed);
      if (!flow.link->is_up()) continue;
      if (outstanding) {
        flow.link->lane().Abandon(frames_[index].slot);
      } else {
        flow.link->lane().Release(frames_[index].slot);
      }
    }
  }
}

void Router::FillReport(AttendReport* report, Instant begin) const {
  *report = {};
  for (size_t i = 0; i < flow_count_; ++i) {
    report->holder_count += flows_[i].asked ? 1 : 0;
    report->compute_ns_max = std::max(report->compute_ns_max, flows_[i].compute_ns);
    report->approximate = report->approximate || flows_[i].approximate;
  }
  report->bytes_sent = bytes_sent_;
  report->bytes_received = bytes_received_;
  report->elapsed = clock_->Now() - begin;
}

}  // namespace ckv

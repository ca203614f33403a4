// Waiting requests, one queue per session, served so that every session gets an equal share.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "proto/base/status.h"
#include "server/batch/ready_request.h"
#include "server/session/serve_counters.h"

namespace ckv {

// Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with equal weights. Each session
// has a clock that its own served work advances; the session that is furthest behind is served
// next. A session that was idle starts at the clock of the session being served, so it cannot
// accumulate credit. Waiting sessions therefore get equal shares of the work, however many requests
// each posts and however large they are. A session with little work is served almost at once.
//
// Belongs to one thread, which publishes count() and work() in `depth` for other threads. Allocates
// when a session is added or gets a lane. Never allocates when a request arrives, since a session
// has at most as many requests as its lanes have slots.
class FairQueue {
 public:
  // `depth` is borrowed and must outlive the queue.
  explicit FairQueue(QueueGauge* depth) : depth_(depth) {}

  // One session's requests, in order of arrival over its lanes.
  class Flow {
   public:
    bool empty() const { return count_ == 0; }
    uint32_t count() const { return count_; }
    const ReadyRequest& front() const { return ring_[head_]; }

   private:
    friend class FairQueue;
    std::vector<ReadyRequest> ring_;
    uint32_t head_ = 0;
    uint32_t count_ = 0;
    uint64_t served_ = 0;  // the session's clock: the cost charged to it
  };

  Flow* AddSession() {
    flows_.push_back(std::make_unique<Flow>());
    return flows_.back().get();
  }
  // Makes room for `slot_count` more requests of the session. Call it for every new lane.
  void Grow(Flow& flow, uint32_t slot_count) {
    std::vector<ReadyRequest> larger(flow.ring_.size() + slot_count);
    for (uint32_t i = 0; i < flow.count_; ++i) larger[i] = At(flow, i);
    flow.ring_ = std::move(larger);
    flow.head_ = 0;
  }
  // Removes the session's flow, which must be empty (call DropLane for its lanes first).
  void RemoveSession(Flow* flow) {
    CKV_CHECK(flow->empty());
    std::erase_if(flows_, [flow](const std::unique_ptr<Flow>& f) { return f.get() == flow; });
  }

  void Push(Flow& flow, const ReadyRequest& ready) {
    CKV_CHECK(flow.count_ < flow.ring_.size());
    if (flow.empty()) {
      flow.served_ = std::max(flow.served_, now_);
      ++waiting_sessions_;
    }
    At(flow, flow.count_++) = ready;
    Add(1, ready.work);
  }

  // Returns the flow whose turn it is, or null if no request waits. Serve its front() next.
  Flow* Next() const {
    if (count_ == 0) return nullptr;
    Flow* next = nullptr;
    for (const std::unique_ptr<Flow>& flow : flows_) {
      if (!flow->empty() && (next == nullptr || flow->served_ < next->served_)) next = flow.get();
    }
    return next;
  }
  // Removes the front of `flow` and charges `cost` to the session. Drops the queue's reference to
  // the request's cold_rows.
  void Pop(Flow& flow, uint64_t cost) {
    now_ = flow.served_;
    flow.served_ += std::max<uint64_t>(cost, 1);
    Add(-1, -flow.front().work);
    At(flow, 0).cold_rows.reset();
    flow.head_ = (flow.head_ + 1) % static_cast<uint32_t>(flow.ring_.size());
    if (--flow.count_ == 0) --waiting_sessions_;
  }

  // Removes the flow's requests that arrived on `lane`, without a reply.
  void DropLane(Flow& flow, const ServeLane* lane) {
    const uint32_t before = flow.count_;
    flow.count_ = 0;
    for (uint32_t i = 0; i < before; ++i) {
      const ReadyRequest ready = At(flow, i);
      if (ready.lane == lane) {
        Add(-1, -ready.work);
      } else {
        At(flow, flow.count_++) = ready;
      }
    }
    for (uint32_t i = flow.count_; i < before; ++i) At(flow, i).cold_rows.reset();
    if (before != 0 && flow.count_ == 0) --waiting_sessions_;
  }

  uint32_t count() const { return count_; }
  // The number of sessions with at least one request here.
  uint32_t waiting_sessions() const { return waiting_sessions_; }
  // The multiply-adds of all requests here, as estimated on arrival.
  uint64_t work() const { return work_; }

 private:
  static ReadyRequest& At(Flow& flow, uint32_t i) {
    return flow.ring_[(flow.head_ + i) % flow.ring_.size()];
  }

  // Negative numbers wrap.
  void Add(uint32_t count, uint64_t work) {
    depth_->request_count.store(count_ += count, std::memory_order_relaxed);
    depth_->work.store(work_ += work, std::memory_order_relaxed);
  }

  QueueGauge* depth_;
  std::vector<std::unique_ptr<Flow>> flows_;
  uint32_t count_ = 0;
  uint32_t waiting_sessions_ = 0;
  uint64_t work_ = 0;
  uint64_t now_ = 0;  // the clock of the session served last, before it was charged
};

}  // namespace ckv

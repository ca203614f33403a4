// Requests that wait, a queue a session, served in proportion to what they cost.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "proto/status.h"
#include "server/ready_request.h"

namespace ckv {

// Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with equal weights: each session
// has a clock that its own served work advances, and the one that is furthest behind is served
// next. One that was idle starts at the clock of whoever is served now, so it cannot save up. So
// while sessions wait they get equal shares of the work, however many requests each of them posts
// and however large those are; one that asks little is served almost at once.
//
// Belongs to one thread, but for count() and work(), which any may read. Allocates when a session
// comes or gets a lane, never when a request does: a session has no more requests than its lanes
// have slots.
class FairQueue {
 public:
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
    uint64_t served_ = 0;  // the clock
  };

  Flow* AddSession() {
    flows_.push_back(std::make_unique<Flow>());
    return flows_.back().get();
  }
  // The session may have `slot_count` requests more.
  void Grow(Flow& flow, uint32_t slot_count) {
    std::vector<ReadyRequest> larger(flow.ring_.size() + slot_count);
    for (uint32_t i = 0; i < flow.count_; ++i) larger[i] = At(flow, i);
    flow.ring_ = std::move(larger);
    flow.head_ = 0;
  }
  // Its flow is empty.
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
    Add(count_, 1);
    Add(work_, ready.work);
  }

  // Whose turn it is; null if nobody waits.
  Flow* Next() const {
    if (count() == 0) return nullptr;
    Flow* next = nullptr;
    for (const std::unique_ptr<Flow>& flow : flows_) {
      if (!flow->empty() && (next == nullptr || flow->served_ < next->served_)) next = flow.get();
    }
    return next;
  }
  // Takes the front of `flow`, which cost `cost`. What it held of rows from disk is let go.
  void Pop(Flow& flow, uint64_t cost) {
    now_ = flow.served_;
    flow.served_ += std::max<uint64_t>(cost, 1);
    Add(work_, -flow.front().work);
    At(flow, 0).cold_rows.reset();
    flow.head_ = (flow.head_ + 1) % static_cast<uint32_t>(flow.ring_.size());
    Add(count_, -1);
    if (--flow.count_ == 0) --waiting_sessions_;
  }

  // Forgets the requests of a lane that broke.
  void DropLane(Flow& flow, const ServeLane* lane) {
    const uint32_t before = flow.count_;
    flow.count_ = 0;
    for (uint32_t i = 0; i < before; ++i) {
      const ReadyRequest ready = At(flow, i);
      if (ready.lane == lane) {
        Add(work_, -ready.work);
        Add(count_, -1);
      } else {
        At(flow, flow.count_++) = ready;
      }
    }
    for (uint32_t i = flow.count_; i < before; ++i) At(flow, i).cold_rows.reset();
    if (before != 0 && flow.count_ == 0) --waiting_sessions_;
  }

  uint32_t count() const { return count_.load(std::memory_order_relaxed); }
  uint32_t waiting_sessions() const { return waiting_sessions_; }
  // Of all that wait, as estimated on arrival.
  uint64_t work() const { return work_.load(std::memory_order_relaxed); }

 private:
  static ReadyRequest& At(Flow& flow, uint32_t i) {
    return flow.ring_[(flow.head_ + i) % flow.ring_.size()];
  }

  // One writer: a load and a store, no read-modify-write. Negative numbers wrap.
  template <typename T>
  static void Add(std::atomic<T>& sum, std::type_identity_t<T> by) {
    sum.store(sum.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  std::vector<std::unique_ptr<Flow>> flows_;
  std::atomic<uint32_t> count_{0};
  uint32_t waiting_sessions_ = 0;
  std::atomic<uint64_t> work_{0};
  uint64_t now_ = 0;  // the clock of who was served last, before it was
};

}  // namespace ckv

// The events of a simulation in the order of their times.

#pragma once

#include <cstdint>
#include <queue>
#include <vector>

namespace ckv {

// An event is a time, a kind, and the index of what it happens to. Equal times come in the order in
// which they were pushed, so a run is the same for the same seed. Not thread-safe.
template <typename Kind>
class EventQueue {
 public:
  struct Event {
    double at_s = 0;
    uint64_t order = 0;
    Kind kind{};
    uint32_t index = 0;

    bool operator>(const Event& other) const {
      return at_s != other.at_s ? at_s > other.at_s : order > other.order;
    }
  };

  void Push(double at_s, Kind kind, uint32_t index) {
    events_.push({at_s, pushed_++, kind, index});
  }
  bool empty() const { return events_.empty(); }
  const Event& Next() const { return events_.top(); }
  Event Pop() {
    const Event event = events_.top();
    events_.pop();
    return event;
  }

 private:
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  uint64_t pushed_ = 0;
};

}  // namespace ckv

// The messages of a verbs connection that arrived and were not taken yet, oldest first.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/verbs_wire.h"

namespace ckv {

// A message that arrived.
struct VerbsMessage {
  VerbsImmediate immediate;
  uint32_t buffer = 0;  // number of the receive that got it
  uint32_t bytes = 0;   // bytes of the last work request
  bool write = false;   // written by RDMA into the landing region
};

// Belongs to one thread. Allocates only when it is made.
class VerbsInbox {
 public:
  explicit VerbsInbox(size_t count_max) : ring_(count_max) {}

  bool empty() const noexcept { return count_ == 0; }
  size_t count() const noexcept { return count_; }
  // Returns whether `count` more messages fit.
  bool HasRoom(size_t count) const noexcept { return count_ + count <= ring_.size(); }
  // Message `i`, where 0 is the oldest.
  const VerbsMessage& at(size_t i) const noexcept { return ring_[(begin_ + i) % ring_.size()]; }
  void Push(const VerbsMessage& message) noexcept {
    ring_[(begin_ + count_++) % ring_.size()] = message;
  }
  // Removes the oldest message.
  void Pop() noexcept { begin_ = (begin_ + 1) % ring_.size(), --count_; }

 private:
  std::vector<VerbsMessage> ring_;
  size_t begin_ = 0, count_ = 0;
};

}  // namespace ckv

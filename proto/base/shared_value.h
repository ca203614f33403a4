// A value that its copies share.

#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace ckv {

// A T in 8 bytes: a pointer to a T that all copies share until one of them is changed. A T() takes
// no memory beside the pointer. As thread-safe as a T: copies may be used by different threads.
template <typename T>
class SharedValue {
 public:
  SharedValue() = default;
  SharedValue(const SharedValue& other) noexcept : box_(other.box_) {
    if (box_ != nullptr) box_->count.fetch_add(1, std::memory_order_relaxed);
  }
  SharedValue(SharedValue&& other) noexcept : box_(std::exchange(other.box_, nullptr)) {}
  SharedValue& operator=(SharedValue other) noexcept {
    std::swap(box_, other.box_);
    return *this;
  }
  ~SharedValue() {
    if (box_ != nullptr && box_->count.fetch_sub(1, std::memory_order_acq_rel) == 1) delete box_;
  }

  const T& operator*() const { return box_ == nullptr ? None() : box_->value; }
  const T* operator->() const { return &**this; }
  // Returns the value for changes, which copies do not see. Valid until this object is assigned to,
  // copied or destroyed.
  T& Change() {
    if (box_ == nullptr) {
      box_ = new Box;
    } else if (box_->count.load(std::memory_order_acquire) != 1) {
      *this = SharedValue(box_->value);
    }
    return box_->value;
  }

  // Whether both are the same memory, and so equal.
  bool SharesWith(const SharedValue& other) const { return box_ == other.box_; }

  friend bool operator==(const SharedValue& a, const SharedValue& b) {
    return a.SharesWith(b) || *a == *b;
  }

 private:
  struct Box {
    std::atomic<uint32_t> count{1};
    T value;
  };
  explicit SharedValue(const T& value) : box_(new Box{.value = value}) {}
  static const T& None() {
    static const T none;
    return none;
  }

  Box* box_ = nullptr;
};

}  // namespace ckv

#include "tests/support/fault_fabric.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "proto/base/status.h"
#include "transport/slots.h"
#include "transport/socket.h"

namespace ckv {
namespace {

// The fate of one message. It is drawn whole at the message's Post. So the n-th fate of a lane
// depends on the seed alone and not on the order of polls.
struct Fate {
  bool break_lane = false;
  bool drop_request = false;
  bool drop_reply = false;
  bool duplicate = false;
  bool duplicate_late = false;  // after the slot was posted again; else with the next Poll
  Duration delay{0};
};

class FateSource {
 public:
  FateSource(const FaultPlan& plan, uint64_t ordinal) : plan_(plan) {
    std::seed_seq seed{static_cast<uint32_t>(plan.seed), static_cast<uint32_t>(plan.seed >> 32),
                       static_cast<uint32_t>(ordinal), static_cast<uint32_t>(ordinal >> 32)};
    generator_.seed(seed);
  }

  // Draws the same number of values at every call.
  Fate Next() {
    Fate fate;
    fate.break_lane = Uniform() < plan_.break_lane;
    fate.drop_request = Uniform() < plan_.drop_request;
    fate.drop_reply = Uniform() < plan_.drop_reply;
    fate.duplicate = Uniform() < plan_.duplicate_reply;
    fate.duplicate_late = Uniform() < 0.5;
    const bool delayed = Uniform() < plan_.delay;
    const double part = Uniform();
    if (delayed) {
      fate.delay = Duration(
          1 + static_cast<int64_t>(part * static_cast<double>(plan_.delay_max.count() - 1)));
    }
    return fate;
  }

 private:
  // Returns a value in [0, 1), the same everywhere: the library's distributions differ between
  // implementations.
  double Uniform() { return static_cast<double>(generator_() >> 11) * 0x1p-53; }

  const FaultPlan plan_;
  std::mt19937_64 generator_;
};

// Keeps its own buffers of every slot. So a late or second reply is memory of this lane, and a
// broken lane's spans stay valid after the inner lane has been closed.
class FaultRequestLane final : public RequestLane {
 public:
  FaultRequestLane(std::unique_ptr<RequestLane> inner, Clock* clock, const FaultPlan& plan,
                   uint64_t ordinal)
      : inner_(std::move(inner)),
        kind_(inner_->kind()),
        shape_(inner_->shape()),
        clock_(clock),
        fates_(plan, ordinal),
        slots_(shape_.slot_count),
        books_(shape_.slot_count),
        slot_of_inner_(shape_.slot_count) {}

  FabricKind kind() const noexcept override { return kind_; }
  const LaneShape& shape() const noexcept override { return shape_; }
  absl::Status status() const override { return inner_ ? inner_->status() : broken_; }

  int event_fd() const noexcept override {
    return inner_ ? inner_->event_fd() : broken_event_.get();
  }

  // Nothing wakes a sleeper when a delayed reply is due, because the clock may be a manual one.
  // Until then the owner polls.
  bool Arm() noexcept override {
    return inner_ && replies_.empty() && !DuplicateIsDue() && inner_->Arm();
  }
  void Disarm() noexcept override {
    if (inner_) inner_->Disarm();
  }

  std::optional<uint32_t> Acquire() noexcept override {
    AssertOwned();
    const std::optional<uint32_t> slot = slots_.Acquire();
    // Allocated when first used: a test takes few of the slots.
    if (slot && books_[*slot].request == nullptr) {
      books_[*slot].request = NewBuffer(shape_.request_bytes_max);
      books_[*slot].reply = NewBuffer(shape_.reply_bytes_max);
    }
    return slot;
  }

  std::span<std::byte> request(uint32_t slot) noexcept override {
    CKV_CHECK(slot < books_.size());
    return {books_[slot].request.get(), shape_.request_bytes_max};
  }

  absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
    AssertOwned();
    slots_.CheckHeld(slot);
    CKV_CHECK(bytes <= shape_.request_bytes_max);
    const Fate fate = fates_.Next();
    if (fate.break_lane) Break();
    if (absl::Status down = status(); !down.ok()) {
      slots_.Release(slot);
      return down;
    }
    Book& book = books_[slot];
    if (fate.drop_request) {
      slots_.Post(slot);
      book.lost = true;
    } else {
      // An inner slot is free: one is taken only while one of ours is in flight.
      const std::optional<uint32_t> inner_slot = inner_->Acquire();
      CKV_CHECK(inner_slot.has_value());
      std::memcpy(inner_->request(*inner_slot).data(), book.request.get(), bytes);
      if (absl::Status posted = inner_->Post(*inner_slot, bytes); !posted.ok()) {
        slots_.Release(slot);
        return posted;
      }
      slots_.Post(slot);
      book.lost = false;
      slot_of_inner_[*inner_slot] = slot;
    }
    book.fate = fate;
    ++book.generation;
    return absl::OkStatus();
  }

  size_t Poll(std::span<Completion> out) noexcept override {
    AssertOwned();
    if (!inner_) return 0;
    TakeInner();
    size_t count = 0;
    shown_.assign(books_.size(), false);
    ShowDuplicates(out, count);
    ShowReplies(out, count);
    return count;
  }

  std::span<const std::byte> reply(uint32_t slot) const noexcept override {
    CKV_CHECK(slot < books_.size());
    return {books_[slot].reply.get(), shape_.reply_bytes_max};
  }

  void Release(uint32_t slot) noexcept override {
    slots_.Release(slot);
    books_[slot].descriptor = absl::NotFoundError("taken, or released");
  }

  void Abandon(uint32_t slot) noexcept override {
    slots_.Abandon(slot);
    // No reply to it will arrive.
    if (books_[slot].lost) CKV_CHECK(slots_.Complete(slot) == RequesterSlots::Reply::kSwallow);
  }

  uint32_t in_flight() const noexcept override { return slots_.in_flight(); }

  absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t slot) noexcept override {
    slots_.CheckDone(slot);
    return std::exchange(books_[slot].descriptor, absl::NotFoundError("taken, or released"));
  }

 private:
  struct FreeDeleter {
    void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
  };
  using Buffer = std::unique_ptr<std::byte, FreeDeleter>;

  static Buffer NewBuffer(size_t bytes) {
    void* buffer = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    CKV_CHECK(buffer != nullptr);
    std::memset(buffer, 0, bytes);
    return Buffer(static_cast<std::byte*>(buffer));
  }

  struct Book {
    Buffer request;
    Buffer reply;
    Fate fate;
    uint64_t generation = 0;  // generation of the last Post
    bool lost = false;        // the request or the reply was dropped
    absl::StatusOr<UniqueFd> descriptor = absl::NotFoundError("none came");
  };
  struct Reply {
    uint32_t slot = 0;
    uint64_t generation = 0;
    Instant due;
    std::vector<std::byte> data;
    absl::StatusOr<UniqueFd> descriptor;  // of the first delivery; a duplicate has none
    bool late = false;                    // the duplicate follows the slot's next Post
  };

  void Break() {
    if (!inner_) return;
    inner_.reset();  // closes the connection: the holder sees it too
    broken_ = absl::UnavailableError("the lane was broken by the fault plan");
    broken_event_ = UniqueFd(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));  // readable from now on
    replies_.clear();
    duplicates_.clear();
  }

  // Copies arrived replies out of the inner lane, so that its slots are free again.
  void TakeInner() {
    std::array<Completion, 16> arrived;
    const size_t count = inner_->Poll(arrived);
    for (size_t i = 0; i < count; ++i) {
      const Completion& completion = arrived[i];
      const uint32_t slot = slot_of_inner_[completion.slot];
      Book& book = books_[slot];
      if (!book.fate.drop_reply) {
        const auto bytes = inner_->reply(completion.slot).first(completion.bytes);
        replies_.push_back({slot, book.generation, clock_->Now() + book.fate.delay,
                            std::vector<std::byte>(bytes.begin(), bytes.end()),
                            inner_->TakeDescriptor(completion.slot)});
      } else if (slots_.abandoned(slot)) {
        (void)slots_.Complete(slot);
      } else {
        book.lost = true;
      }
      inner_->Release(completion.slot);
    }
  }

  void Show(const Reply& reply, std::span<Completion> out, size_t& count) {
    std::copy(reply.data.begin(), reply.data.end(), books_[reply.slot].reply.get());
    out[count++] = {reply.slot, static_cast<uint32_t>(reply.data.size())};
    shown_[reply.slot] = true;
  }

  void ShowReplies(std::span<Completion> out, size_t& count) {
    const Instant now = clock_->Now();
    for (auto it = replies_.begin(); it != replies_.end() && count < out.size();) {
      if (it->due > now || shown_[it->slot]) {
        ++it;
        continue;
      }
      if (slots_.Complete(it->slot) == RequesterSlots::Reply::kDeliver) {
        Show(*it, out, count);
        books_[it->slot].descriptor = std::move(it->descriptor);
        const Fate& fate = books_[it->slot].fate;
        if (fate.duplicate) {
          it->late = fate.duplicate_late;
          duplicates_.push_back(std::move(*it));
        }
      }
      it = replies_.erase(it);
    }
  }

  // A duplicate may not overwrite a reply that the owner still reads; its own is the same bytes.
  bool MayShow(const Reply& duplicate) const {
    const bool reposted = books_[duplicate.slot].generation != duplicate.generation;
    if (duplicate.late && !reposted) return false;
    return !reposted || !slots_.done(duplicate.slot);
  }

  bool DuplicateIsDue() const {
    return std::any_of(duplicates_.begin(), duplicates_.end(),
                       [this](const Reply& d) { return MayShow(d); });
  }

  void ShowDuplicates(std::span<Completion> out, size_t& count) {
    for (auto it = duplicates_.begin(); it != duplicates_.end() && count < out.size();) {
      if (!MayShow(*it) || shown_[it->slot]) {
        ++it;
        continue;
      }
      Show(*it, out, count);
      it = duplicates_.erase(it);
    }
  }

  std::unique_ptr<RequestLane> inner_;  // null once broken
  const FabricKind kind_;
  const LaneShape shape_;
  Clock* const clock_;
  FateSource fates_;
  RequesterSlots slots_;
  std::vector<Book> books_;
  std::vector<uint32_t> slot_of_inner_;
  absl::Status broken_;
  UniqueFd broken_event_;
  // At most one reply and two duplicates per slot: a late one leaves with the slot's next
  // completion at the latest.
  std::deque<Reply> replies_;
  std::deque<Reply> duplicates_;
  std::vector<bool> shown_;  // in this Poll: a slot's buffer holds one reply at a time
};

class FaultDialer final : public Dialer {
 public:
  FaultDialer(std::unique_ptr<Dialer> inner, Clock* clock, const FaultPlan& plan, uint64_t ordinal)
      : inner_(std::move(inner)), clock_(clock), plan_(plan), ordinal_(ordinal) {}

  const std::string& offer() const override { return inner_->offer(); }

  absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                       Instant deadline) override {
    CKV_ASSIGN_OR_RETURN(std::unique_ptr<RequestLane> lane, inner_->Connect(answer, deadline));
    return std::make_unique<FaultRequestLane>(std::move(lane), clock_, plan_, ordinal_);
  }

 private:
  const std::unique_ptr<Dialer> inner_;
  Clock* const clock_;
  const FaultPlan plan_;
  const uint64_t ordinal_;
};

class FaultFabric final : public Fabric {
 public:
  FaultFabric(Fabric* inner, Clock* clock, const FaultPlan& plan)
      : inner_(inner), clock_(clock), plan_(plan) {}

  FabricKind kind() const noexcept override { return inner_->kind(); }

  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    return inner_->Listen(options);
  }

  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    CKV_ASSIGN_OR_RETURN(std::unique_ptr<Dialer> dialer, inner_->Dial(shape));
    const uint64_t ordinal = lane_count_++;
    return std::make_unique<FaultDialer>(std::move(dialer), clock_, plan_, ordinal);
  }

 private:
  Fabric* const inner_;
  Clock* const clock_;
  const FaultPlan plan_;
  std::atomic<uint64_t> lane_count_{0};
};

}  // namespace

std::unique_ptr<Fabric> NewFaultFabric(Fabric* inner, Clock* clock, const FaultPlan& plan) {
  return std::make_unique<FaultFabric>(inner, clock, plan);
}

}  // namespace ckv

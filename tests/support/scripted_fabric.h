// A fabric of any kind whose lanes take the time that a test sets, on a clock that the fabric
// advances, and that fails to connect on demand. Costs of seconds drown what the real clock adds,
// also on machines that others keep busy.

#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "tests/support/shifted_clock.h"
#include "transport/fabric.h"

namespace ckv::test {

// Moves bytes over its own loopback fabric. Thread-safe; must outlive what it made.
class ScriptedFabric final : public Fabric {
 public:
  ScriptedFabric(FabricKind kind, ShiftedClock* clock, Duration round_trip = Duration(0),
                 double bytes_per_s = 1e3)
      : kind_(kind),
        clock_(clock),
        inner_(NewLoopbackFabric(Clock::Real())),
        round_trip_ns_(round_trip.count()),
        bytes_per_s_(bytes_per_s) {}

  // Sets the cost of every frame posted from now on, and of the bytes of both directions.
  void set_cost(Duration round_trip, double bytes_per_s) {
    round_trip_ns_ = round_trip.count();
    bytes_per_s_ = bytes_per_s;
  }
  void set_dial_error(const absl::Status& status) { Set(&dial_error_, status); }
  // Connect advances the clock by `takes`, at most to the deadline.
  void set_connect_error(const absl::Status& status, Duration takes = Duration(0)) {
    Set(&connect_error_, status);
    connect_ns_ = takes.count();
  }
  void set_invite_error(const absl::Status& status) { Set(&invite_error_, status); }
  int connect_count() const { return connect_count_; }  // tries

  FabricKind kind() const noexcept override { return kind_; }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options) override {
    CKV_ASSIGN_OR_RETURN(auto inner, inner_->Listen(options));
    return std::make_unique<ScriptedListener>(this, std::move(inner));
  }
  absl::StatusOr<std::unique_ptr<Dialer>> Dial(const LaneShape& shape) override {
    CKV_RETURN_IF_ERROR(Get(dial_error_));
    CKV_ASSIGN_OR_RETURN(auto inner, inner_->Dial(shape));
    return std::make_unique<ScriptedDialer>(this, std::move(inner));
  }

 private:
  class Requesting final : public RequestLane {
   public:
    Requesting(ScriptedFabric* fabric, std::unique_ptr<RequestLane> inner)
        : fabric_(fabric), inner_(std::move(inner)) {}
    FabricKind kind() const noexcept override { return fabric_->kind_; }
    const LaneShape& shape() const noexcept override { return inner_->shape(); }
    absl::Status status() const override { return inner_->status(); }
    int event_fd() const noexcept override { return inner_->event_fd(); }
    bool Arm() noexcept override { return inner_->Arm(); }
    void Disarm() noexcept override { inner_->Disarm(); }
    std::optional<uint32_t> Acquire() noexcept override { return inner_->Acquire(); }
    std::span<std::byte> request(uint32_t slot) noexcept override { return inner_->request(slot); }
    absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
      fabric_->Spend(Duration(fabric_->round_trip_ns_), bytes);
      return inner_->Post(slot, bytes);
    }
    size_t Poll(std::span<Completion> out) noexcept override {
      const size_t count = inner_->Poll(out);
      for (const Completion& done : out.first(count)) fabric_->Spend(Duration(0), done.bytes);
      return count;
    }
    std::span<const std::byte> reply(uint32_t slot) const noexcept override {
      return inner_->reply(slot);
    }
    void Release(uint32_t slot) noexcept override {
      fabric_->DropDescriptor(slot);
      inner_->Release(slot);
    }
    void Abandon(uint32_t slot) noexcept override { inner_->Abandon(slot); }
    uint32_t in_flight() const noexcept override { return inner_->in_flight(); }
    absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t slot) noexcept override {
      return fabric_->TakeDescriptor(slot);
    }

   private:
    ScriptedFabric* const fabric_;
    const std::unique_ptr<RequestLane> inner_;
  };

  class Serving final : public ServeLane {
   public:
    Serving(ScriptedFabric* fabric, std::unique_ptr<ServeLane> inner)
        : fabric_(fabric), inner_(std::move(inner)) {
      set_slot_type(inner_->slot_type());
    }
    FabricKind kind() const noexcept override { return fabric_->kind_; }
    const LaneShape& shape() const noexcept override { return inner_->shape(); }
    absl::Status status() const override { return inner_->status(); }
    int event_fd() const noexcept override { return inner_->event_fd(); }
    bool Arm() noexcept override { return inner_->Arm(); }
    void Disarm() noexcept override { inner_->Disarm(); }
    size_t Poll(std::span<Arrival> out) noexcept override { return inner_->Poll(out); }
    std::span<const std::byte> request(uint32_t slot) const noexcept override {
      return inner_->request(slot);
    }
    std::span<std::byte> reply(uint32_t slot) noexcept override { return inner_->reply(slot); }
    absl::Status Post(uint32_t slot, uint32_t bytes) noexcept override {
      return inner_->Post(slot, bytes);
    }
    absl::Status PostWithDescriptor(uint32_t slot, uint32_t bytes, int fd) noexcept override {
      fabric_->PassDescriptor(slot, fd);
      return inner_->Post(slot, bytes);
    }

   private:
    ScriptedFabric* const fabric_;
    const std::unique_ptr<ServeLane> inner_;
  };

  class ScriptedListener final : public Listener {
   public:
    ScriptedListener(ScriptedFabric* fabric, std::unique_ptr<Listener> inner)
        : fabric_(fabric), inner_(std::move(inner)) {}
    FabricKind kind() const noexcept override { return fabric_->kind_; }
    absl::StatusOr<std::string> Invite(std::string_view offer, const LaneShape& shape,
                                       std::string_view account, uint64_t tag,
                                       Instant deadline) override {
      CKV_RETURN_IF_ERROR(fabric_->Get(fabric_->invite_error_));
      return inner_->Invite(offer, shape, account, tag, deadline);
    }
    int event_fd() const noexcept override { return inner_->event_fd(); }
    std::optional<AcceptedLane> Accept() override {
      std::optional<AcceptedLane> accepted = inner_->Accept();
      if (accepted) accepted->lane = std::make_unique<Serving>(fabric_, std::move(accepted->lane));
      return accepted;
    }

   private:
    ScriptedFabric* const fabric_;
    const std::unique_ptr<Listener> inner_;
  };

  class ScriptedDialer final : public Dialer {
   public:
    ScriptedDialer(ScriptedFabric* fabric, std::unique_ptr<Dialer> inner)
        : fabric_(fabric), inner_(std::move(inner)) {}
    const std::string& offer() const override { return inner_->offer(); }
    absl::StatusOr<std::unique_ptr<RequestLane>> Connect(std::string_view answer,
                                                         Instant deadline) override {
      ++fabric_->connect_count_;
      if (const Instant now = fabric_->clock_->Now(); now < deadline)
        fabric_->clock_->Advance(std::min(Duration(fabric_->connect_ns_), deadline - now));
      CKV_RETURN_IF_ERROR(fabric_->Get(fabric_->connect_error_));
      CKV_ASSIGN_OR_RETURN(auto inner, inner_->Connect(answer, deadline));
      return std::make_unique<Requesting>(fabric_, std::move(inner));
    }

   private:
    ScriptedFabric* const fabric_;
    const std::unique_ptr<Dialer> inner_;
  };

  void Spend(Duration round_trip, uint32_t bytes) {
    clock_->Advance(round_trip + Duration(int64_t(bytes / bytes_per_s_ * 1e9)));
  }
  void Set(absl::Status* field, const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    *field = status;
  }
  absl::Status Get(const absl::Status& field) {
    absl::MutexLock lock(&mu_);
    return field;
  }
  // By slot: for tests with one lane.
  void PassDescriptor(uint32_t slot, int fd) {
    absl::MutexLock lock(&mu_);
    descriptors_[slot] = UniqueFd(dup(fd));
  }
  void DropDescriptor(uint32_t slot) {
    absl::MutexLock lock(&mu_);
    descriptors_.erase(slot);
  }
  absl::StatusOr<UniqueFd> TakeDescriptor(uint32_t slot) {
    absl::MutexLock lock(&mu_);
    const auto it = descriptors_.find(slot);
    if (it == descriptors_.end()) return absl::NotFoundError("no descriptor came");
    UniqueFd fd = std::move(it->second);
    descriptors_.erase(it);
    return fd;
  }

  const FabricKind kind_;
  ShiftedClock* const clock_;
  const std::unique_ptr<Fabric> inner_;
  std::atomic<int64_t> round_trip_ns_, connect_ns_{0};
  std::atomic<double> bytes_per_s_;
  std::atomic<int> connect_count_{0};
  absl::Mutex mu_;
  absl::Status dial_error_, connect_error_, invite_error_;
  std::map<uint32_t, UniqueFd> descriptors_;
};

}  // namespace ckv::test

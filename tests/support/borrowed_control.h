// A control connection to a holder of this process. It forwards each call.

#pragma once

#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "transport/control.h"

namespace ckv::test {

// The requester owns its connections; the holder belongs to the test and must outlive them.
class BorrowedControl final : public HolderControl {
 public:
  explicit BorrowedControl(HolderControl* holder) : holder_(holder) {}
  absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer, Instant deadline) override {
    return holder_->OpenSession(offer, deadline);
  }
  absl::Status CloseSession(SessionId session, Instant deadline) override {
    return holder_->CloseSession(session, deadline);
  }
  absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
      SessionId session, std::span<const ChunkId> ids, Instant deadline) override {
    return holder_->ResolveChunks(session, ids, deadline);
  }

 private:
  HolderControl* const holder_;
};

}  // namespace ckv::test

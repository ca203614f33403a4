// The client of a holder's control plane over gRPC.

#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckv/v1/holder.grpc.pb.h"
#include "proto/base/clock.h"
#include "transport/control.h"

namespace ckv {

// The limit of ids per ResolveChunks message: 2 MiB of the holder's limit of 8 MiB. More ids are
// sent in several messages.
inline constexpr size_t kResolveIdCountMax = 65536;

// Thread-safe. Errors as in transport/control.h; every message names the call, the holder and
// its address.
class HolderStub final : public HolderControl {
 public:
  // Does not use the network. `clock` must outlive the stub.
  HolderStub(const Member& member, Clock* clock);

  absl::StatusOr<SessionAnswer> OpenSession(const SessionOffer& offer, Instant deadline) override;
  absl::Status CloseSession(SessionId session, Instant deadline) override;
  absl::StatusOr<std::vector<std::optional<ResolvedHandle>>> ResolveChunks(
      SessionId session, std::span<const ChunkId> ids, Instant deadline) override;

 private:
  absl::Status ResolveSome(SessionId session, std::span<const ChunkId> ids, Instant deadline,
                           std::vector<std::optional<ResolvedHandle>>& out);
  std::string Context(std::string_view call) const;

  const Member member_;
  Clock* const clock_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::HolderService::StubInterface> stub_;
};

class HolderStubFactory final : public HolderControlFactory {
 public:
  // `clock` must outlive the factory and its stubs.
  explicit HolderStubFactory(Clock* clock) : clock_(clock) {}
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member& member) override;

 private:
  Clock* const clock_;
};

}  // namespace ckv

// The directory over gRPC, as a registering member uses it.

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ckv/v1/directory.grpc.pb.h"
#include "proto/base/clock.h"
#include "server/directory/registration.h"

namespace ckv {

// Errors as in registration.h; every message names the call and the directory's address.
class DirectoryRegistrarStub final : public DirectoryRegistrar {
 public:
  // Does not touch the network. `clock` must outlive it. `reports_parts` as for LocalRegistrar.
  DirectoryRegistrarStub(std::string address, Clock* clock, bool reports_parts = false);

  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl,
                                      Instant deadline) override;
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                         Instant deadline) override;
  absl::Status Deregister(uint64_t lease_id, Instant deadline) override;

 private:
  std::string Context(std::string_view call) const;

  const std::string address_;
  Clock* const clock_;
  const bool reports_parts_;
  const std::unique_ptr<v1::DirectoryService::StubInterface> stub_;
};

}  // namespace ckv

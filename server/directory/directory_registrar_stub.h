// The directory over gRPC, as a registering member uses it.

#pragma once

#include <string_view>

#include "client/grpc/directory_caller.h"
#include "proto/base/clock.h"
#include "server/directory/registration.h"

namespace ckv {

// Errors as in registration.h; every message names the call and the directory's address.
class DirectoryRegistrarStub final : public DirectoryRegistrar {
 public:
  // `addresses` as for DirectoryCaller. Does not touch the network. `clock` must outlive it.
  // `reports_parts` as for LocalRegistrar.
  DirectoryRegistrarStub(std::string_view addresses, Clock* clock, bool reports_parts = false)
      : reports_parts_(reports_parts), directory_(addresses, clock) {}

  absl::StatusOr<LeaseGrant> Register(const Member& member, Duration ttl, bool continues,
                                      Instant deadline) override;
  absl::StatusOr<LeaseRenewal> KeepAlive(uint64_t lease_id, const MemberHealth* health,
                                         Instant deadline) override;
  absl::Status Deregister(uint64_t lease_id, Instant deadline) override;

 private:
  using Stub = DirectoryCaller::Stub;
  const bool reports_parts_;
  DirectoryCaller directory_;
};

}  // namespace ckv

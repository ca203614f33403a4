// The network oracle over gRPC, as a requester asks it.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckv/v1/oracle.grpc.pb.h"
#include "client/network_oracle.h"
#include "proto/clock.h"

namespace ckv {

// Thread-safe. Every message names the oracle's address. Limits are those of network_oracle.h: what
// comes is counted before it is kept.
class OracleStub final : public OracleSource {
 public:
  // Does not touch the network.
  explicit OracleStub(std::string address);

  // `taken` is when it was asked, less the age it tells: the way is not counted, so it may look as
  // much younger as the call took.
  //   InvalidArgument     what it told is outside the limits; names the field.
  //   Unavailable, DeadlineExceeded, NotFound  as the service.
  absl::StatusOr<NetworkSnapshot> Read(const std::string& requester_host,
                                       const std::vector<std::string>& holder_hosts, Clock& clock,
                                       Instant deadline) override;
  std::string Describe() const override { return "oracle " + address_; }

 private:
  const std::string address_;
  const std::unique_ptr<v1::OracleService::StubInterface> stub_;
};

}  // namespace ckv

// The network oracle over gRPC, as a requester asks it.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckv/v1/oracle.grpc.pb.h"
#include "client/decide/network_oracle.h"
#include "proto/base/clock.h"

namespace ckv {

// Thread-safe. Every message names the oracle's address. The limits of network_oracle.h apply: an
// answer is counted before it is kept.
class OracleStub final : public OracleSource {
 public:
  // Does not touch the network.
  explicit OracleStub(std::string address);

  // `taken` is when the call began, less the age in the answer. The time of the reply's way is not
  // counted, so the data may look younger by as much as the call took.
  //   InvalidArgument     the answer is outside the limits; names the field.
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

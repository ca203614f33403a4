// A source of the network oracle that queries an OracleService over gRPC.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ckv/v1/oracle.grpc.pb.h"
#include "client/cost/network_oracle.h"
#include "proto/base/clock.h"

namespace ckv {

// Thread-safe. Every error message names the oracle's address. The limits of network_oracle.h
// apply: the entries of an answer are counted before they are kept.
class OracleStub final : public OracleSource {
 public:
  // Does not use the network.
  explicit OracleStub(std::string address);

  // `taken` is the start of the call, less the age in the answer. The time until the answer was
  // made is not added, so the data may look older by as much as the call took.
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

#include "server/daemon_oracle.h"

#include <string>
#include <utility>

#include "client/oracle_file.h"
#include "client/oracle_stub.h"
#include "proto/status.h"

namespace ckv {

absl::StatusOr<std::unique_ptr<NetworkOracle>> StartOracle(const Config& config, Clock* clock) {
  std::unique_ptr<OracleSource> source;
  if (!config.oracle_file.empty()) {
    source = std::make_unique<OracleFile>(config.oracle_file);
  } else if (!config.oracle_address.empty()) {
    source = std::make_unique<OracleStub>(config.oracle_address);
  } else {
    return std::unique_ptr<NetworkOracle>();
  }
  NetworkOracleOptions options;
  options.clock = clock;
  const std::string& address = config.advertise.empty() ? config.listen : config.advertise;
  options.requester_host =
      config.oracle_host.empty() ? std::string(HostOfAddress(address)) : config.oracle_host;
  auto oracle = std::make_unique<NetworkOracle>(std::move(source), std::move(options));
  if (!config.oracle_file.empty()) {
    if (const absl::Status status = oracle->Refresh(); !status.ok())
      return Annotate(status, "oracle.file");
  }
  oracle->Start();
  return oracle;
}

}  // namespace ckv

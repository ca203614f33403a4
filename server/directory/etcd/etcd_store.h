// The address of the etcd in which several directories of a fleet keep their state.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace ckv {

// The address of a fleet's state: "etcd://HOST:PORT,HOST:PORT/NAME". NAME is the fleet's, so that
// several share an etcd; "ckv" if it is left out.
struct EtcdStore {
  static constexpr size_t kEndpointCountMax = 16;

  std::vector<std::string> endpoints;  // the members' client addresses
  std::string prefix;                  // all keys begin with it, for example "/ckv/"

  //   InvalidArgument     names what is wrong.
  static absl::StatusOr<EtcdStore> Parse(std::string_view text);
};

}  // namespace ckv

// The settings of an engine's attention by ckv, from the environment: an engine has no options of
// ckv's.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attention/partial.h"
#include "client/context/context.h"
#include "proto/base/clock.h"
#include "transport/fabric.h"

namespace ckv::ggml {

struct Settings {
  // CKV_DIRECTORY, host:port, as ckvctl has it.
  std::string directory;
  // CKV_GGML_CORPUS: what every sequence without a reference attends, whole. Empty if nothing.
  std::string corpus;
  // CKV_GGML_POSITION: where that corpus begins. If unset, it ends before position 0, so an engine
  // counts its own tokens from 0 on.
  std::optional<int64_t> position;
  // CKV_GGML_TENANT: the tenant whose corpora are read, beside the shared ones. A name, not a
  // credential.
  std::string tenant;
  // CKV_GGML_POLICY: auto, route or near.
  ContextPolicy policy = ContextPolicy::kAuto;
  // CKV_GGML_NEAR_BYTES, like 4GiB: room for rows that are pulled here.
  uint64_t near_bytes = uint64_t{1} << 30;
  // CKV_GGML_TIMEOUT, like 10s: how long the attention of one layer may take.
  Duration timeout = std::chrono::seconds(10);
  // CKV_GGML_WIRE: f32 or bf16, the type of the partials on the wire.
  PartialDtype wire = PartialDtype::kF32;
  // CKV_GGML_FABRICS, like shm,tcp,verbs: the fabrics to use. A probe takes the fastest that a
  // holder has too.
  std::vector<FabricKind> fabrics = {FabricKind::kShm, FabricKind::kTcp};
  // CKV_GGML_VERBS_DEVICE: the RDMA device of verbs. If empty, the only one.
  std::string verbs_device;
  // CKV_GGML_KERNEL_TARGET: that of the fleet, if it was given one (AVX3, say). If empty, the
  // fastest here.
  std::string kernel_target;
};

// Reads them. `value_of` returns the value of a variable that is set; `names` has all variables.
//   InvalidArgument     a value is none of its variable's, or a variable begins with CKV_GGML_ and
//                       is unknown. The message says which, and what would be right.
absl::StatusOr<Settings> ReadSettings(
    const std::function<std::optional<std::string>(const std::string&)>& value_of,
    std::span<const std::string> names);
// The same, of this process.
absl::StatusOr<Settings> ReadSettings();

}  // namespace ckv::ggml

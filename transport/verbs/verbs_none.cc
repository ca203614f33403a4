// The verbs fabric of a build without libibverbs.

#include "transport/verbs/verbs_fabric.h"

namespace ckv {

absl::Status CheckVerbs(const VerbsOptions& /*options*/) {
  return absl::UnimplementedError(
      "built without libibverbs: install libibverbs-dev, configure with -DCKV_RDMA=ON and build "
      "again, or use shm and tcp");
}

absl::StatusOr<std::unique_ptr<VerbsFabric>> NewVerbsFabric(const VerbsOptions& options,
                                                            Clock* /*clock*/) {
  return CheckVerbs(options);
}

}  // namespace ckv

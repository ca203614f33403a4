// Publishing a corpus whose chunks are put.

#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/tools/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

// If `expected_version` is not 0, replaces only that version.
//   AlreadyExists       there is one, and not `replace`
//   FailedPrecondition  another version is current; else the directory's error.
absl::StatusOr<v1::PublishCorpusReply> PublishCorpus(Fleet& fleet, const Corpus& corpus,
                                                     bool replace, uint64_t expected_version = 0);

}  // namespace ckv::ctl

// Publishing a corpus whose chunks are put.

#pragma once

#include "absl/status/statusor.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/tools/ctl/fleet.h"
#include "proto/corpus.h"

namespace ckv::ctl {

//   AlreadyExists       there is one, and not `replace`; else the directory's error.
absl::StatusOr<v1::PublishCorpusReply> PublishCorpus(Fleet& fleet, const Corpus& corpus,
                                                     bool replace);

}  // namespace ckv::ctl

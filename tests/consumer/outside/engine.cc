// Attends one token's query rows at layer 0 of a whole corpus: engine DIRECTORY CORPUS
#include <cstdint>
#include <cstdio>
#include <vector>

#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "engine: %s\n", status.ToString().c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return Fail(absl::InvalidArgumentError("usage: engine DIRECTORY CORPUS"));
  ckv::Clock* clock = ckv::Clock::Real();
  ckv::DirectoryStub directory(argv[1], clock);
  ckv::HolderStubFactory holders(clock);
  ckv::RequesterOptions options;
  options.id = "engine-0";
  auto requester = ckv::Requester::Create(options, &directory, &holders);
  if (!requester.ok()) return Fail(requester.status());

  const ckv::Instant deadline = clock->Now() + std::chrono::seconds(10);
  auto corpus = (*requester)->Resolve(argv[2], /*tenant=*/"", deadline);
  if (!corpus.ok()) return Fail(corpus.status());
  const ckv::Geometry& geometry = (*corpus)->geometry;
  const uint32_t rows = 16;  // one token of a model with 16 heads
  const std::vector<uint16_t> q(rows * geometry.d_qk, 0x3f80);  // bf16 ones
  std::vector<float> o(rows * geometry.d_v), m(rows), l(rows);
  ckv::AttendCall call;
  call.corpus = *corpus;
  call.q = {q.data(), rows, geometry.d_qk};
  call.deadline = deadline;
  const ckv::PartialView out = {o.data(), m.data(), l.data(), ckv::PartialDtype::kF32};
  const absl::Status status = (*requester)->Attend(call, out, /*report=*/nullptr);
  if (!status.ok()) return Fail(status);
  std::printf("%zu chunks, m %.9g, l %.9g, o[0] %.9g\n", (*corpus)->chunks.size(), m[0], l[0],
              o[0]);
  return 0;
}

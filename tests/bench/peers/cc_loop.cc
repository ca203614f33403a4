// Routes query rows over a corpus from C++, again and again. tests/bench/peer_doors.py compares C
// (c_loop.c) and Python (py_loop.py) with it.
//
//   cc_loop DIRECTORY CORPUS
//
// Each line on stdin is a number of query rows and a number of calls. The answer is a line with the
// time of each call in nanoseconds.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace ckv::bench {
namespace {

constexpr uint32_t kCountMax = 100'000, kRowsMax = 1024;
constexpr Duration kPatience = std::chrono::seconds(10);

Instant Soon() { return Clock::Real()->Now() + kPatience; }

void Run(const char* address, const char* name) {
  DirectoryStub directory(address, Clock::Real());
  HolderStubFactory holders(Clock::Real());
  RequesterOptions options;
  options.id = "cc_loop";
  options.fabric = FabricKind::kShm;
  options.local_cache_bytes = 0;
  const auto requester = *Requester::Create(options, &directory, &holders);
  const auto corpus = *requester->Resolve(name, "", Soon());
  ContextPart part;
  part.corpus = corpus;
  const Context context =
      *requester->Open({.parts = {&part, 1}, .policy = ContextPolicy::kRoute}, Soon());
  const Geometry& geometry = corpus->geometry;
  const std::vector<uint16_t> q(size_t{kRowsMax} * geometry.d_qk);
  std::vector<float> o(size_t{kRowsMax} * geometry.d_v), m(kRowsMax), l(kRowsMax);
  uint32_t rows = 0, count = 0;
  while (std::scanf("%u %u", &rows, &count) == 2) {
    CKV_CHECK(rows > 0 && rows <= kRowsMax && count > 0 && count <= kCountMax);
    const Segment segment = {.row_count = rows, .context = &context};
    LayerCall call;
    call.q = {q.data(), rows, geometry.d_qk};
    call.segments = {&segment, 1};
    for (uint32_t i = 0; i < count; ++i) {
      const Instant begin = Clock::Real()->Now();
      call.deadline = begin + kPatience;
      CKV_CHECK(requester->Attend(call, {o.data(), m.data(), l.data()}, nullptr).ok());
      const auto ns = (Clock::Real()->Now() - begin).count();
      std::printf("%s%lld", i == 0 ? "" : " ", static_cast<long long>(ns));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace ckv::bench

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  ckv::bench::Run(argv[1], argv[2]);
  return 0;
}

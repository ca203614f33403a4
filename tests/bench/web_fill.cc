// Fills real daemons for tests/bench/web_figures.py and tests/bench/directory_sizes.py.
//
//   web_fill members DIRECTORY MEMBERS CORPORA [CHUNKS]
//       registers members and publishes corpora of CHUNKS (10) chunks, all with long names
//   web_fill sessions DIRECTORY CORPUS COUNT
//       opens a session of a requester of its own, and attends, COUNT times; keeps them until stdin
//       ends
//   web_fill resolve DIRECTORY COUNT
//       resolves COUNT of the corpora in one requester
//
// Prints "ready" once that is done. resolve prints the bytes of memory per chunk.

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckv/v1/directory.grpc.pb.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/directory_stub.h"
#include "client/grpc/holder_stub.h"
#include "client/requester.h"
#include "proto/convert.h"
#include "tests/bench/resident_bytes.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

constexpr size_t kChunks = 10;
constexpr size_t kRunChunks = 15;  // as corpus load places aligned runs together
constexpr uint32_t kLeaseMs = 60'000;
constexpr size_t kCallers = 8;
constexpr size_t kRunCorpora = 1000;  // between two registrations of the members

Instant Soon() { return Clock::Real()->Now() + std::chrono::seconds(20); }

std::string MemberName(size_t i) {
  return absl::StrFormat("node%04d.rack%02d-holder-7401", i, i % 40);
}

void Check(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "web_fill: %s\n", status.error_message().c_str());
  std::exit(1);
}

std::string CorpusName(size_t number) {
  return absl::StrFormat("documents-of-the-year-%05d-by-author-and-title", number);
}

Corpus MakeCorpus(size_t number, size_t members, size_t chunks) {
  Corpus corpus;
  corpus.name = CorpusName(number);
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  for (size_t i = 0; i < chunks; ++i) {
    ChunkPlacement chunk;
    for (size_t byte = 0; byte < 8; ++byte)
      chunk.id.bytes[byte] = static_cast<uint8_t>((number * chunks + i + 1) >> (8 * byte));
    if (i > 0) chunk.set_parent(corpus.chunks.back().id);
    chunk.token_count = 2048;
    chunk.position = 2048 * i;
    const size_t run = number * 7 + i / kRunChunks * 31;
    chunk.set_holders({{MemberName(run % members)}, {MemberName((run + 13) % members)}});
    corpus.chunks.push_back(std::move(chunk));
  }
  return corpus;
}

void RegisterAll(v1::DirectoryService::Stub& stub, size_t members) {
  for (size_t i = 0; i < members; ++i) {
    Member member;
    member.id = {MemberName(i)};
    member.role = MemberRole::kHolder;
    member.control_address = absl::StrFormat("node%04d.rack%02d.example.net:7401", i, i % 40);
    v1::RegisterRequest request;
    *request.mutable_member() = ToProto(member);
    request.set_lease_ttl_ms(kLeaseMs);
    grpc::ClientContext context;
    v1::RegisterReply reply;
    Check(stub.Register(&context, request, &reply));
  }
}

int Members(const std::string& address, size_t members, size_t corpora, size_t chunks) {
  const auto stub = v1::DirectoryService::NewStub(MakeChannel(address));
  for (size_t begin = 0; begin == 0 || begin < corpora; begin += kRunCorpora) {
    RegisterAll(*stub, members);
    const size_t end = std::min(corpora, begin + kRunCorpora);
    std::atomic<size_t> next{begin};
    std::vector<std::thread> callers;
    for (size_t t = 0; t < kCallers; ++t) {
      callers.emplace_back([&] {
        for (size_t i = next++; i < end; i = next++) {
          v1::PublishCorpusRequest request;
          *request.mutable_corpus() = ToProto(MakeCorpus(i, members, chunks));
          grpc::ClientContext context;
          v1::PublishCorpusReply reply;
          Check(stub->PublishCorpus(&context, request, &reply));
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
  }
  std::printf("ready\n");
  return 0;
}

int Resolve(const std::string& address, size_t count) {
  DirectoryStub directory(address, Clock::Real());
  HolderStubFactory holders(Clock::Real());
  RequesterOptions options;
  options.id = "resolver";
  options.fabric = FabricKind::kTcp;
  options.local_cache_bytes = 0;
  auto requester = Requester::Create(options, &directory, &holders);
  if (!requester.ok()) {
    std::fprintf(stderr, "web_fill: %s\n", requester.status().ToString().c_str());
    return 1;
  }
  std::vector<std::shared_ptr<const Corpus>> held;
  double before = 0;
  size_t chunks = 0;
  // The first one pays for what is made once.
  for (size_t i = 0; i <= count; ++i) {
    const auto corpus = (*requester)->Resolve(CorpusName(i), "", Soon());
    if (!corpus.ok()) {
      std::fprintf(stderr, "web_fill: %s\n", corpus.status().ToString().c_str());
      return 1;
    }
    if (i > 0) chunks += (*corpus)->chunks.size();
    held.push_back(*corpus);
    if (i == 0) before = ResidentBytes();
  }
  std::printf("%.1f\n", (ResidentBytes() - before) / double(chunks));
  return 0;
}

int Sessions(const std::string& address, const std::string& name, size_t count) {
  DirectoryStub directory(address, Clock::Real());
  HolderStubFactory holders(Clock::Real());
  std::vector<std::unique_ptr<Requester>> requesters;
  for (size_t i = 0; i < count; ++i) {
    RequesterOptions options;
    options.id = absl::StrFormat("r%d", i);
    options.fabric = FabricKind::kTcp;
    options.call_count_max = 1;
    options.local_cache_bytes = 0;
    auto requester = Requester::Create(options, &directory, &holders);
    const auto corpus =
        requester.ok() ? (*requester)->Resolve(name, "", Soon()) : requester.status();
    absl::Status status = corpus.status();
    if (status.ok()) {
      const Geometry& g = (*corpus)->geometry;
      const std::vector<uint16_t> q(g.d_qk);
      std::vector<float> o(g.d_v), m(1), l(1);
      AttendCall call;
      call.corpus = *corpus;
      call.q = {q.data(), 1, g.d_qk};
      call.deadline = Soon();
      status =
          (*requester)->Attend(call, {o.data(), m.data(), l.data(), PartialDtype::kF32}, nullptr);
    }
    if (!status.ok()) {
      std::fprintf(stderr, "web_fill: %s\n", status.ToString().c_str());
      return 1;
    }
    requesters.push_back(*std::move(requester));
  }
  std::printf("ready\n");
  std::fflush(stdout);
  char end = 0;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  return 0;
}

int Run(const std::vector<std::string>& words) {
  const auto number = [&](size_t i) { return std::strtoull(words[i].c_str(), nullptr, 10); };
  if ((words.size() == 4 || words.size() == 5) && words[0] == "members")
    return Members(words[1], number(2), number(3), words.size() == 5 ? number(4) : kChunks);
  if (words.size() == 4 && words[0] == "sessions") return Sessions(words[1], words[2], number(3));
  if (words.size() == 3 && words[0] == "resolve") return Resolve(words[1], number(2));
  std::fprintf(stderr, "usage: web_fill members|sessions|resolve DIRECTORY ...\n");
  return 2;
}

}  // namespace
}  // namespace ckv

int main(int argc, char** argv) { return ckv::Run({argv + 1, argv + argc}); }

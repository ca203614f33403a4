// Question: what does a directory of 1,000 members, 10,000 corpora and 1,000,000 chunks need, in
// memory, on disk, to start, and to report a change? Bounds: two holders' names, two ids and their
// positions are some 300 bytes of memory per chunk. An id and its numbers are 38 bytes of a log,
// which is stored once in a snapshot and at most four times in logs. A start reads, checks and
// indexes each once, some microseconds per chunk.
//
// In the folder that CKV_BENCH_FOLDER names, else the temporary one: name one on the disk that
// matters.

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/grpc/channel_stub.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "server/directory/durable_directory.h"
#include "server/services/directory_service.h"
#include "tests/bench/resident_bytes.h"
#include "tests/support/named_geometry.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMembers = 1000, kCorpora = 10'000, kChunks = 100, kReplicas = 2;
constexpr size_t kRunChunks = 15;  // as corpus load places aligned runs together
constexpr size_t kCallers = 32;

std::string NewFolder() {
  const char* base = std::getenv("CKV_BENCH_FOLDER");
  std::string path = absl::StrCat(base == nullptr ? "/tmp" : base, "/ckv_directory_bench.XXXXXX");
  CKV_CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

double SecondsSince(Instant begin) { return double((Clock::Real()->Now() - begin).count()) / 1e9; }

// Named host-role-port.
std::string MemberName(size_t i) { return absl::StrFormat("node%04d-holder-7401", i); }

Corpus MakeCorpus(size_t number, uint64_t seed) {
  std::mt19937_64 random(seed * kCorpora + number);
  Corpus corpus;
  corpus.name = absl::StrFormat("documents-%05d", number);
  corpus.geometry = *NamedGeometry("deepseek-v2-lite");
  for (size_t i = 0; i < kChunks; ++i) {
    ChunkPlacement chunk;
    for (size_t word = 0; word < 4; ++word) {
      const uint64_t bits = random();
      std::memcpy(chunk.id.bytes.data() + 8 * word, &bits, sizeof(bits));
    }
    if (i > 0) chunk.set_parent(corpus.chunks.back().id);
    chunk.token_count = 2048;
    chunk.position = 2048 * i;
    const size_t first = number * 7 + i / kRunChunks * 31;
    for (size_t r = 0; r < kReplicas; ++r)
      chunk.mutable_holders().push_back({MemberName((first + r * 13) % kMembers)});
    corpus.chunks.push_back(std::move(chunk));
  }
  return corpus;
}

uint64_t FolderBytes(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code gone;  // a log that a snapshot replaced meanwhile
  for (const auto& entry : fs::directory_iterator(path)) {
    const uintmax_t of_file = entry.file_size(gone);
    if (!gone) bytes += of_file;
  }
  return bytes;
}

// So that the next reads are from the device.
void ForgetFiles(const std::string& path) {
  for (const auto& entry : fs::directory_iterator(path)) {
    const int fd = open(entry.path().c_str(), O_RDONLY);
    CKV_CHECK(fd >= 0 && fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    close(fd);
  }
}

std::unique_ptr<DurableDirectory> Open(const std::string& path) {
  DirectoryOptions options;
  options.first_epoch = WallClockMilliseconds();
  ChangeLogOptions log;
  log.path = path;
  auto directory = DurableDirectory::Open(options, log);
  CKV_CHECK(directory.ok());
  return *std::move(directory);
}

void RegisterAll(DirectoryState& state) {
  for (size_t i = 0; i < kMembers; ++i) {
    const Member member = {.id = {MemberName(i)},
                           .role = MemberRole::kHolder,
                           .control_address = absl::StrFormat("10.0.%d.%d:7401", i / 250, i % 250),
                           .epoch = {}};
    CKV_CHECK(state.Register(member, std::chrono::seconds(60)).ok());
  }
}

// Publishes all corpora by many callers. Returns the most bytes that were on disk.
uint64_t PublishAll(DirectoryState& state, const std::string& path, uint64_t seed) {
  std::atomic<size_t> next{0};
  std::atomic<uint64_t> most{0};
  std::vector<std::thread> callers;
  for (size_t t = 0; t < kCallers; ++t) {
    callers.emplace_back([&] {
      for (size_t i = next++; i < kCorpora; i = next++) {
        CKV_CHECK(state.Publish(MakeCorpus(i, seed), true, 0).ok());
        if (i % 100 == 0) most = std::max<uint64_t>(most, FolderBytes(path));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  return std::max<uint64_t>(most, FolderBytes(path));
}

void BM_Million(benchmark::State& state) {
  const std::string folder = NewFolder();
  const absl::Cleanup remove = [&] { fs::remove_all(folder); };
  const std::string path = folder + "/directory";
  constexpr double kAll = double(kCorpora) * kChunks;
  for (auto _ : state) {
    const double before = ResidentBytes();
    auto directory = Open(path);
    RegisterAll(directory->state());
    Instant begin = Clock::Real()->Now();
    uint64_t disk = PublishAll(directory->state(), path, 1);
    state.counters["changes_per_s"] = double(kCorpora) / SecondsSince(begin);
    const ChangeLog::Stats stats = directory->log()->stats();
    state.counters["changes_per_sync"] = double(stats.change_count) / double(stats.sync_count);
    // All of them once more, as other versions: the log is at its longest, snapshots are replaced.
    disk = std::max(disk, PublishAll(directory->state(), path, 2));
    CKV_CHECK(directory->state().counts().placement_count == kCorpora * kChunks);
    const double memory = ResidentBytes() - before;
    state.counters["memory_per_chunk"] = memory / kAll;
    state.counters["disk_per_chunk"] = double(disk) / kAll;
    state.counters["bytes_per_chunk"] = (memory + double(disk)) / kAll;
    directory.reset();
    ForgetFiles(path);
    begin = Clock::Real()->Now();
    directory = Open(path);
    RegisterAll(directory->state());
    state.counters["restart_s"] = SecondsSince(begin);
    CKV_CHECK(directory->state().counts().placement_count == kCorpora * kChunks);
    CKV_CHECK(directory->state().MissingHolders().empty());
  }
}
BENCHMARK(BM_Million)->Iterations(1)->Unit(benchmark::kMillisecond);

// One caller, who waits for each sync.
void BM_OneCaller(benchmark::State& state) {
  const std::string folder = NewFolder();
  const absl::Cleanup remove = [&] { fs::remove_all(folder); };
  const auto directory = Open(folder + "/directory");
  const Corpus corpus = MakeCorpus(1, 1);
  for (auto _ : state) CKV_CHECK(directory->state().Publish(corpus, true, 0).ok());
  state.counters["change_us"] = benchmark::Counter(
      double(state.iterations()) * 1e-6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_OneCaller)->Unit(benchmark::kMicrosecond)->UseRealTime();

// A watch's message about a corpus with the longest names, however many chunks it has.
void BM_ReportedChange(benchmark::State& state) {
  DirectoryState directory(DirectoryOptions{});
  ServiceGate gate(8);
  DirectoryServiceImpl service(&directory, &gate, Clock::Real());
  KeepGrpcUp();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto stub = v1::DirectoryService::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", port)));
  Corpus corpus = MakeCorpus(1, 1);
  corpus.name = std::string(kCorpusNameBytesMax, 'n');
  corpus.tenant = std::string(kCorpusNameBytesMax, 't');
  corpus.geometry.model = std::string(kModelNameBytesMax, 'm');
  for (auto _ : state) {
    grpc::ClientContext context;
    v1::WatchRequest request;
    request.set_all_tenants(true);
    const auto reader = stub->Watch(&context, request);
    v1::WatchEvent event;
    while (reader->Read(&event) && !event.synced()) continue;
    CKV_CHECK(directory.Publish(corpus, true, 0).ok());
    CKV_CHECK(reader->Read(&event) && event.has_corpus_published());
    state.counters["bytes"] = double(event.ByteSizeLong());
    context.TryCancel();
  }
  gate.Close();
  server->Shutdown();
}
BENCHMARK(BM_ReportedChange)->Iterations(1);

}  // namespace
}  // namespace ckv

BENCHMARK_MAIN();

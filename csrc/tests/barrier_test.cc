// The kernels of csrc/cuda in emulation give the bits of the CPU backend, whatever the order of
// blocks and threads; and each of their barriers, shuffles and votes is needed: with any one of
// them left out, some order of threads gives other bits or a fault. Such a fault may be a race
// alone, where what the emulation does happens to come out right, see emu/races.cc.
//
//   barrier_test [SOURCES]    SOURCES is the folder csrc/cuda, in which no barrier may be left that
//                             the cases do not come to
#include <cuda_runtime.h>
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/call.h"
#include "tests/expect.h"

namespace {

using gradbus::emu::Barriers;
using gradbus::emu::Drop;
using gradbus::emu::Faults;
using gradbus::emu::Seed;
using gradbus::tests::Backend;
using gradbus::tests::Case;
using gradbus::tests::Cases;
using gradbus::tests::Opened;

constexpr int kEach = 24;          // times the cases of an operation
constexpr int kSeeds = 3;          // orders in which all cases give the right bits
constexpr int kDropSeeds = 6;      // orders in which a missing barrier has to show
constexpr unsigned kSeconds = 10;  // of a run without a barrier, which may well not end

struct Wanted {
  Case c;
  std::string outcome;
};

std::vector<Wanted> WantedOf(const Backend& cpu) {
  std::vector<Wanted> all;
  for (const Case& c : Cases(kEach)) {
    all.push_back({c, c.run(cpu, c.seed)});
    if (all.back().outcome.rfind("status 1 ", 0) == 0) {
      std::printf("%s: the CPU lacks it\n", c.name.c_str());
      failures++;
    }
  }
  return all;
}

// Where two texts part.
std::string Parting(const std::string& want, const std::string& got) {
  const size_t n = std::min(want.size(), got.size());
  size_t at = static_cast<size_t>(
      std::mismatch(want.begin(), want.begin() + static_cast<ptrdiff_t>(n), got.begin()).first -
      want.begin());
  at = at < 30 ? 0 : at - 30;
  return "want ..." + want.substr(at, 60) + "\n     got  ..." + got.substr(at, 60);
}

// Cases that differ are no witnesses for what comes after, and are taken out.
void TestBits(std::vector<Wanted>* all) {
  for (uint64_t seed = 0; seed < kSeeds; seed++) {
    int wrong = 0;
    std::vector<Wanted> right;
    auto emu = std::make_unique<Opened>(gb_emu_backend(GB_ABI), nullptr);
    for (const Wanted& w : *all) {
      Seed(seed);
      const std::string got = w.c.run(emu->sync(), w.c.seed);
      if (got == w.outcome && Faults().empty()) {
        right.push_back(w);
        continue;
      }
      if (wrong++ < 5) {
        std::printf("%s, order %d: %s\n     %s\n", w.c.name.c_str(), static_cast<int>(seed),
                    Faults().c_str(), Parting(w.outcome, got).c_str());
      }
      gradbus::emu::Reset();
      emu = std::make_unique<Opened>(gb_emu_backend(GB_ABI), nullptr);  // a fault loses the device
    }
    std::printf("order %d: %d of %d cases differ\n", static_cast<int>(seed), wrong,
                static_cast<int>(all->size()));
    failures += wrong;
    *all = right;
  }
}

// Leaves out a barrier and says how the first case notices; nothing where none does.
std::string Noticed(const Backend& emu, const std::vector<Wanted>& all, int site) {
  char how[400] = "";
  for (uint64_t seed = 0; seed < kDropSeeds; seed++) {
    for (const Wanted& w : all) {
      Drop(site);
      Seed(seed);
      const std::string got = w.c.run(emu, w.c.seed);
      const std::string fault = Faults();
      if (got == w.outcome && fault.empty()) continue;
      std::snprintf(how, sizeof how, "%s, order %d: %s", w.c.name.c_str(), static_cast<int>(seed),
                    fault.empty() ? "other bits" : fault.c_str());
      return how;
    }
  }
  return how;
}

// The same in a process of its own, since without a barrier a kernel may do anything.
std::string NoticedApart(const Backend& emu, const std::vector<Wanted>& all, int site) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    alarm(kSeconds);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    const std::string how = Noticed(emu, all, site);
    if (write(ends[1], how.data(), how.size()) < 0) _exit(1);
    _exit(0);
  }
  close(ends[1]);
  std::string how;
  char piece[256];
  for (ssize_t n = 0; (n = read(ends[0], piece, sizeof piece)) > 0;) {
    how.append(piece, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "";
  if (WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGALRM ? "does not end" : "crashes";
  }
  return WEXITSTATUS(status) == 0 ? how : "the sanitizer stops it";
}

void TestDrops(const Backend& emu, const std::vector<Wanted>& all) {
  const std::vector<std::string> sites = Barriers();
  std::printf("\n%-28s left out\n", "barrier");
  for (size_t i = 0; i < sites.size(); i++) {
    const std::string how = NoticedApart(emu, all, static_cast<int>(i));
    std::printf("%-28s %s\n", sites[i].c_str(), how.empty() ? "NOT NOTICED" : how.c_str());
    EXPECT(!how.empty());
  }
  std::printf("%d barriers\n", static_cast<int>(sites.size()));
}

// Whether a line of source calls a barrier, a shuffle or a vote.
bool HasBarrier(std::string line) {
  line = line.substr(0, line.find("//"));
  for (const char* name : {"__syncthreads(", "__syncwarp(", "__shfl_", "__ballot_sync(",
                           "__any_sync(", "__all_sync("}) {
    if (line.find(name) != std::string::npos) return true;
  }
  return false;
}

// A call of several lines counts by its first one or by its last.
bool IsMet(const std::vector<std::string>& met, const std::string& file, int line) {
  for (int l = line; l < line + 4; l++) {
    if (std::find(met.begin(), met.end(), "cuda/" + file + ":" + std::to_string(l)) != met.end()) {
      return true;
    }
  }
  return false;
}

void TestNoneLeft(const char* folder) {
  const std::vector<std::string> met = Barriers();
  DIR* dir = opendir(folder);
  EXPECT(dir != nullptr);
  if (dir == nullptr) return;
  int found = 0;
  for (const dirent* entry = readdir(dir); entry != nullptr; entry = readdir(dir)) {
    const std::string name = entry->d_name;
    if (name.find(".cu") == std::string::npos) continue;
    std::ifstream file(std::string(folder) + "/" + name);
    std::string line;
    for (int number = 1; std::getline(file, line); number++) {
      if (!HasBarrier(line)) continue;
      found++;
      if (IsMet(met, name, number)) continue;
      std::printf("%s:%d: no case comes here: %s\n", name.c_str(), number, line.c_str());
      failures++;
    }
  }
  closedir(dir);
  EXPECT(found > 0);
}

}  // namespace

int main(int n, char** arguments) {
  const Opened cpu(gb_backend(GB_ABI), "baseline");
  std::vector<Wanted> all = WantedOf(cpu.sync());
  TestBits(&all);
  if (n > 1) TestNoneLeft(arguments[1]);
  if (gradbus::emu::Watches()) {
    const Opened emu(gb_emu_backend(GB_ABI), nullptr);
    TestDrops(emu.sync(), all);
  } else {
    std::printf("no barrier is left out: this program does not see races\n");
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

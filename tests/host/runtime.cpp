// What does not depend on a kernel: how threads take turns, their barriers and copies. Compiled once for all.
//
// Sanitizers are told of turns. ThreadSanitizer takes a fiber for a thread, which nothing but happens_before
// and happens_after puts in an order with others. So it finds races, although only one runs at a time.
#include "async_copy.cuh"

#include <sanitizer/common_interface_defs.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#define UNSEEN __attribute__((noinline, no_sanitize("address", "thread", "undefined")))

static Thread main_thread, *ran_last;
static unsigned number_begun;

// Threads that may run, by warp, and the warps that have some. The main thread is a warp of its own.
struct Lanes {
    Thread* of[32];
    unsigned number;
    unsigned place;  // in ready_warps
};
static Lanes ready[MOST_THREADS / 32 + 1];
static Lanes* ready_warps[MOST_THREADS / 32 + 1];
static unsigned number_of_warps;

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char*, int);
void AnnotateIgnoreReadsEnd(const char*, int);
void AnnotateIgnoreWritesBegin(const char*, int);
void AnnotateIgnoreWritesEnd(const char*, int);
}
Quiet::Quiet() { AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0); }
Quiet::~Quiet() { AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0); }
static void happens_before(void* what) { __tsan_release(what); }
static void happens_after(void* what) { __tsan_acquire(what); }
static void* new_fiber() { return __tsan_create_fiber(0); }
static void forget_fiber(void* fiber) { __tsan_destroy_fiber(fiber); }
UNSEEN static void before_switch(Thread* to) {
    if (!running->known) running->known = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->known, __tsan_switch_to_fiber_no_sync);
}
UNSEEN static void after_switch() {}
#else
Quiet::Quiet() {}
Quiet::~Quiet() {}
static void happens_before(void*) {}
static void happens_after(void*) {}
static void* new_fiber() { return nullptr; }
static void forget_fiber(void*) {}
UNSEEN static void before_switch(Thread* to) {
    __sanitizer_start_switch_fiber(running->ended ? nullptr : &running->known, to->stack, to->stack_bytes);
}
UNSEEN static void after_switch() {
    __sanitizer_finish_switch_fiber(running->known, &ran_last->stack, &ran_last->stack_bytes);
}
#endif

UNSEEN static void may_run(Thread* thread) {
    Lanes& warp = ready[thread->number / 32];
    if (!warp.number) {
        warp.place = number_of_warps++;
        ready_warps[warp.place] = &warp;
    }
    warp.of[warp.number++] = thread;
}

UNSEEN static unsigned random_below(unsigned end) {
    static unsigned random = 1;
    random = random * 1664525 + 1013904223;
    return size_t(random) * end >> 32;
}

// A thread of this warp if any may run, else of another one: so warps are as far from each other as barriers
// allow.
UNSEEN static Thread* next_thread(bool of_this_warp = true) {
    if (!number_of_warps) {
        std::fputs("Every thread waits for others. The last one:\n", stderr);
        __sanitizer_print_stack_trace();
        std::_Exit(3);
    }
    Lanes* warp = &ready[running->number / 32];
    if (!of_this_warp || !warp->number) warp = ready_warps[random_below(number_of_warps)];
    Thread*& chosen = warp->of[random_below(warp->number)];
    Thread* thread = chosen;
    chosen = warp->of[--warp->number];
    if (!warp->number) {
        ready_warps[warp->place] = ready_warps[--number_of_warps];
        ready_warps[warp->place]->place = warp->place;
    }
    return thread;
}

UNSEEN static void go_on(Thread* thread) {  // not where __builtin_setjmp is
    if (thread->begun) __builtin_longjmp(thread->place, 1);
    setcontext(&thread->beginning);
}

// Another thread runs, until one chooses this one. The system's swapcontext is slower, and AddressSanitizer
// forgets the bounds of a stack's arrays in it.
UNSEEN static void run_instead(Thread* to) {
    if (to == running) return;
    before_switch(to);
    ran_last = running;
    ran_last->begun = true;
    running = to;
    if (!__builtin_setjmp(ran_last->place)) go_on(to);
    after_switch();
}

UNSEEN void give_way() {
    may_run(running);
    run_instead(next_thread(false));
}

UNSEEN void Waiting::wait() {
    running->next = first;
    first = running;
    run_instead(next_thread());
}

UNSEEN void Waiting::tell() {
    for (; first; first = first->next) may_run(first);
}

unsigned Meeting::arrive(unsigned threads) {
    const Quiet quiet;
    const unsigned to = phase;
    happens_before(&phases[to]);
    if (++come == threads) {
        come = 0;
        phase ^= 1;
        others.tell();
    }
    return to;
}

void Meeting::wait(unsigned for_phase) {
    const Quiet quiet;
    others.until([&] { return phase != for_phase; });
    happens_after(&phases[for_phase]);
}

// Blocks -------------------------------------------------------------------------------------------------

static std::function<void()> run;  // by each thread
static Waiting for_the_end;        // of all

UNSEEN static void begin_thread() {
    after_switch();
    run();
    happens_before(&for_the_end);
    if (--number_begun == 0) for_the_end.tell();
    running->ended = true;
    run_instead(next_thread());
}

static void begin(Thread& thread) {
    constexpr size_t GUARD = 4096, BYTES = 1 << 20;
    void* memory = mmap(nullptr, GUARD + BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD, PROT_NONE)) std::exit(2);
    getcontext(&thread.beginning);
    thread.beginning.uc_stack.ss_sp = static_cast<char*>(memory) + GUARD;
    thread.beginning.uc_stack.ss_size = BYTES;
    makecontext(&thread.beginning, begin_thread, 0);
    thread.stack = thread.beginning.uc_stack.ss_sp;
    thread.stack_bytes = BYTES;
    thread.known = new_fiber();
    may_run(&thread);
    ++number_begun;
}

UNSEEN static void begin_block(unsigned threads) { blocks_at_once[running->rank].running = threads; }
UNSEEN static void end_thread() { --blocks_at_once[running->rank].running; }

void run_blocks(unsigned cluster, size_t bytes, const std::function<void()>& kernel) {
    const unsigned threads = blockDim.x * blockDim.y, warps_of_block = (threads + 31) / 32;
    if (cluster > MOST_BLOCKS_AT_ONCE || cluster * threads > MOST_THREADS) std::exit(2);
    blocks_of_cluster = cluster;
    main_thread.number = MOST_THREADS;
    running = &main_thread;
    Meeting all;
    run = [&] {
        for (unsigned n = running->rank; n < gridDim.x * gridDim.y * gridDim.z; n += cluster) {
            blockIdx = {n % gridDim.x, n / gridDim.x % gridDim.y, n / gridDim.x / gridDim.y};
            begin_block(threads);
            all.sync(cluster * threads);
            kernel();
            end_thread();
            all.sync(cluster * threads);
        }
    };
    std::vector<Meeting> block_barriers(cluster);
    std::vector<Warp> warps(cluster * warps_of_block);
    std::vector<Thread> each(cluster * threads);
    for (unsigned rank = 0; rank < cluster; ++rank) {
        void* shared;
        if (posix_memalign(&shared, 1024, bytes)) std::exit(2);
        const auto dynamic = static_cast<unsigned char*>(shared);
        blocks_at_once[rank].shared = dynamic;
        for (unsigned i = 0; i < threads; ++i) {
            Thread& thread = each[rank * threads + i];
            thread.index = {i % blockDim.x, i / blockDim.x, 0};
            thread.number = rank * threads + i;
            thread.rank = rank;
            thread.dynamic = dynamic;
            thread.block_barrier = &block_barriers[rank];
            thread.warp = &warps[rank * warps_of_block + i / 32];
            begin(thread);
        }
    }
    for_the_end.until([] { return number_begun == 0; });
    happens_after(&for_the_end);
    for (Thread& thread : each) forget_fiber(thread.known);
    for (unsigned rank = 0; rank < cluster; ++rank) std::free(blocks_at_once[rank].shared);
}

// Copies -------------------------------------------------------------------------------------------------

struct Copy {
    SharedAddress to;
    const void* from;
    int bytes;
    int valid;
    int group;
};
static Own<std::vector<Copy>> copies;
static Own<int> committed;  // groups

void copy_later(SharedAddress to, const void* from, int bytes, int valid) {
    const bool aligned = to % bytes == 0 && (!valid || size_t(from) % bytes == 0);
    if (!aligned) std::abort();
    std::memset(reinterpret_cast<void*>(to), 0xff, bytes);  // NaN
    copies->push_back({to, from, bytes, valid, *committed});
}

void commit_copies() { ++*committed; }

void wait_for_copies_but(int pending) {
    auto copy = copies->begin();
    for (; copy != copies->end() && copy->group + pending < *committed; ++copy) {
        std::memset(reinterpret_cast<void*>(copy->to), 0, copy->bytes);
        std::memcpy(reinterpret_cast<void*>(copy->to), copy->from, copy->valid);
    }
    copies->erase(copies->begin(), copy);
}

// A phase ends with the last arrival and the last of the announced bytes.
struct Phases {
    unsigned arrivals;
    unsigned missing;
    unsigned phase;
    long bytes;
    std::vector<std::function<void()>> copies;
    Waiting waiting;
    char phases[2];

    // Some have arrived, or bytes have. Those who wait, see what the thread has written.
    void end_if_complete() {
        happens_before(&phases[phase]);
        if (missing > 0 || bytes != 0) return;
        missing = arrivals;
        phase ^= 1;
        waiting.tell();
    }
};
static std::map<SharedAddress, Phases> barriers_at;

void initialize(SharedAddress barrier, unsigned arrivals) {
    const Quiet quiet;
    Phases& phases = barriers_at[barrier];
    phases.arrivals = phases.missing = arrivals;
    phases.phase = phases.bytes = 0;
    phases.copies.clear();
}

void arrive(SharedAddress barrier, unsigned bytes) {
    const Quiet quiet;
    Phases& phases = barriers_at.at(barrier);
    phases.bytes += bytes;
    --phases.missing;
    phases.end_if_complete();
}

void copy_before(SharedAddress barrier, unsigned bytes, std::function<void()> copy) {
    const Quiet quiet;
    Phases& phases = barriers_at.at(barrier);
    phases.copies.push_back(std::move(copy));
    phases.bytes -= long(bytes);
    phases.end_if_complete();
}

static Phases& ended(SharedAddress barrier, unsigned phase) {
    const Quiet quiet;
    Phases& phases = barriers_at.at(barrier);
    phases.waiting.until([&] { return phases.phase != phase; });
    happens_after(&phases.phases[phase]);
    return phases;
}

void wait(SharedAddress barrier, unsigned phase) {
    Phases& phases = ended(barrier, phase);
    if (phases.copies.empty()) return;
    for (const auto& copy : phases.copies) copy();
    happens_before(&phases.phases[phase]);  // for others that wait
    const Quiet quiet;
    phases.copies.clear();
}

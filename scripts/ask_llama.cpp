// What a llama.cpp release builds and would allocate, written by any of its programs: the first half of a new release.
//
//     g++ -std=c++17 -shared -fPIC -I L/include -I L/ggml/include -I L/src scripts/ask_llama.cpp -o ask_llama.so -ldl
//     MEMPLAN_GRAPH=graph.jsonl MEMPLAN_TRUTH=truth.json LD_PRELOAD=./ask_llama.so L/build/bin/llama-fit-params ...
//
// L is the release's source, built with shared libraries (the default). The library stands before llama.cpp's own, calls
// them, and writes what it saw while a context was made: the last graph that was planned, which is the prompt's, and the
// bytes of each buffer type with the graphs' nodes and splits. With MEMPLAN_WITHOUT_OPS=OP,OP every GPU refuses these ops,
// by ggml's names. docs/new-release.md says what to do with it all.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"
#if __has_include("llama-ext.h")
#include "llama-ext.h"
#endif

namespace {

struct Planned {
    int nodes, splits;
};
std::vector<Planned> planned;  // the last three are the prompt's graph, the generation's, and the prompt's again
bool making = false, parallel = false;
int depth = 0;

template <typename F> F own(F, const char * name) {
    void * found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "ask_llama: this llama.cpp has no %s, or is linked statically\n", name);
        exit(2);
    }
    return reinterpret_cast<F>(found);
}

std::string quoted(const std::string & text) {
    std::string out = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') out += '\\';
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
    return out + "\"";
}

bool refused(const ggml_tensor * op) {
    const char * ops = getenv("MEMPLAN_WITHOUT_OPS");
    return ops && ("," + std::string(ops) + ",").find("," + std::string(ggml_op_name(op->op)) + ",") != std::string::npos;
}

FILE * opened(const char * variable) {
    const char * path = getenv(variable);
    if (!path) return nullptr;
    FILE * file = fopen(path, "w");
    if (!file) {
        perror(path);
        exit(2);
    }
    return file;
}

template <typename T> std::string four(const T * values) {
    std::string out = "[";
    for (int i = 0; i < GGML_MAX_DIMS; i++) out += (i ? ", " : "") + std::to_string(values[i]);
    return out + "]";
}

using Ids = std::map<const ggml_tensor *, std::string>;

void write_tensor(FILE * file, const ggml_tensor * t, Ids & ids) {
    std::string src;
    for (const ggml_tensor * s : t->src) {
        if (s) src += (src.empty() ? "\"" : ", \"") + ids[s] + "\"";
    }
    fprintf(file, "{\"id\": \"%s\", \"name\": %s, \"op\": \"%s\", \"type\": \"%s\", \"ne\": %s, \"nb\": %s, \"flags\": %d",
            ids[t].c_str(), quoted(t->name).c_str(), ggml_op_desc(t), ggml_type_name(t->type), four(t->ne).c_str(),
            four(t->nb).c_str(), t->flags);
    if (t->view_src) {
        const auto of = ids.find(t->view_src);
        const std::string view = of == ids.end() ? t->view_src->name : of->second;
        fprintf(file, ", \"view_of\": %s, \"offset\": %zu", quoted(view).c_str(), t->view_offs);
    }
    fprintf(file, ", \"src\": [%s]}\n", src.c_str());
}

// Nodes in the order of their computation, leaves before the first node that reads them.
void write_graph(ggml_cgraph * graph) {
    FILE * file = opened("MEMPLAN_GRAPH");
    if (!file) return;
    Ids ids;
    int leaves = 0;
    const int count = ggml_graph_n_nodes(graph);
    for (int i = 0; i < count; i++) ids[ggml_graph_node(graph, i)] = std::to_string(i);
    for (int i = 0; i < count; i++) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        for (const ggml_tensor * s : node->src) {
            if (!s || ids.count(s)) continue;
            ids[s] = "L" + std::to_string(leaves++);
            write_tensor(file, s, ids);
        }
        write_tensor(file, node, ids);
    }
    fclose(file);
}

// One function may call another, and programs go on to plan graphs once they run: what counts is the outermost call while
// a context is made.
void remember(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    if (!making || depth) return;
    planned.push_back({ggml_graph_n_nodes(graph), ggml_backend_sched_get_n_splits(sched)});
    parallel = ggml_backend_sched_get_n_copies(sched) > 1;
    write_graph(graph);
}

}  // namespace

extern "C" bool ggml_backend_dev_supports_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    const bool gpu = ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
    return !(gpu && refused(op)) && own(&ggml_backend_dev_supports_op, "ggml_backend_dev_supports_op")(device, op);
}

extern "C" bool ggml_backend_sched_reserve(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    depth++;
    const bool done = own(&ggml_backend_sched_reserve, "ggml_backend_sched_reserve")(sched, graph);
    depth--;
    remember(sched, graph);
    return done;
}

extern "C" void ggml_backend_sched_reserve_size(ggml_backend_sched_t sched, ggml_cgraph * graph, size_t * sizes) {
    depth++;
    own(&ggml_backend_sched_reserve_size, "ggml_backend_sched_reserve_size")(sched, graph, sizes);
    depth--;
    remember(sched, graph);
}

extern "C" void ggml_backend_sched_split_graph(ggml_backend_sched_t sched, ggml_cgraph * graph) {
    depth++;
    own(&ggml_backend_sched_split_graph, "ggml_backend_sched_split_graph")(sched, graph);
    depth--;
    remember(sched, graph);
}

extern "C" llama_context * llama_init_from_model(llama_model * model, llama_context_params params) {
    planned.clear();
    making = true;
    llama_context * context = own(&llama_init_from_model, "llama_init_from_model")(model, params);
    making = false;
    FILE * file = context && planned.size() > 1 ? opened("MEMPLAN_TRUTH") : nullptr;
    if (!file) return context;
    std::map<std::string, llama_memory_breakdown_data> buffers;  // host buffers of several devices have one name
    for (const auto & [type, use] : llama_get_memory_breakdown(context)) {
        auto & sum = buffers[ggml_backend_buft_name(type)];
        sum.model += use.model;
        sum.context += use.context;
        sum.compute += use.compute;
    }
    std::string said;
    for (const auto & [name, use] : buffers) {
        said += (said.empty() ? "" : ", ") + quoted(name) + ": {\"model\": " + std::to_string(use.model) +
                ", \"context\": " + std::to_string(use.context) + ", \"compute\": " + std::to_string(use.compute) + "}";
    }
    const Planned & prompt = planned.back();
    const Planned & token = planned[planned.size() - 2];
    fprintf(file,
            "{\"buffers\": {%s}, \"n_ctx\": %u, \"n_ctx_seq\": %u, \"nodes\": [%d, %d], \"splits\": [%d, %d], "
            "\"pipeline_parallel\": %s, \"disabled\": []}\n",
            said.c_str(), llama_n_ctx(context), llama_n_ctx_seq(context), prompt.nodes, token.nodes, prompt.splits,
            token.splits, parallel ? "true" : "false");
    fclose(file);
    return context;
}

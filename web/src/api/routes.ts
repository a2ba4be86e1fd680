/** The server's routes, typed by its own document: a field or a path that it does not know does not compile. */

import { ask } from "./client";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

type Method = "get" | "post" | "delete";
type Operation<P extends keyof paths, M extends Method> = NonNullable<paths[P][M]>;

/** The paths that answer to a method. */
type PathOf<M extends Method> = { [P in keyof paths]: paths[P] extends { readonly [K in M]: object } ? P : never }[keyof paths];

interface Content<T> {
  readonly content: { readonly "application/json": T };
}

/** What a route takes. */
export type Body<P extends PathOf<"post">> = Operation<P, "post"> extends { readonly requestBody?: infer R } ? (NonNullable<R> extends Content<infer B> ? B : never) : never;

type Good<R> = R extends { readonly 200: Content<infer A> } ? A : R extends { readonly 202: Content<infer A> } ? A : never;

/** What a route answers when all is well. */
export type Answer<P extends keyof paths, M extends Method> = Operation<P, M> extends { readonly responses: infer R } ? Good<R> : never;

type Parameters<P extends keyof paths, M extends Method> = Operation<P, M> extends { readonly parameters: infer A } ? A : never;

/** What stands in the address, and how the question is taken back. */
export type Asked<P extends keyof paths, M extends Method> = Partial<Pick<Parameters<P, M>, keyof Parameters<P, M> & ("path" | "query")>> & { readonly signal?: AbortSignal | undefined };

export function get<P extends PathOf<"get">>(path: P, asked: Asked<P, "get"> = {}): Promise<Answer<P, "get">> {
  return ask(address(path, asked), { signal: asked.signal });
}

/** `A`: which of the route's answers this question leads to, where there are several. */
export function post<P extends PathOf<"post">, A extends Answer<P, "post"> = Answer<P, "post">>(path: P, body: Body<P>, asked: Asked<P, "post"> = {}): Promise<A> {
  return ask(address(path, asked), { body, method: "POST", signal: asked.signal });
}

/** Sends a file as it is. */
export function upload<P extends PathOf<"post">>(path: P, file: Blob, asked: Asked<P, "post"> = {}): Promise<Answer<P, "post">> {
  return ask(address(path, asked), { file, method: "POST", signal: asked.signal });
}

export function remove<P extends PathOf<"delete">>(path: P, asked: Asked<P, "delete"> = {}): Promise<Answer<P, "delete">> {
  return ask(address(path, asked), { method: "DELETE", signal: asked.signal });
}

/** A path with its parameters, from where the page is: the server may sit behind a prefix. */
export function address<P extends keyof paths, M extends Method>(path: P, asked: Asked<P, M>): string {
  const { path: named, query } = asked as { readonly path?: Readonly<Record<string, string>>; readonly query?: Readonly<Record<string, string>> };
  const filled = path.slice(1).replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(named?.[name] ?? ""));
  return query ? `${filled}?${new URLSearchParams(query).toString()}` : filled;
}

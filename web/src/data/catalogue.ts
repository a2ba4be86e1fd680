/** What the server knows: devices, models, and what it may do. Asked once, again when it comes back. */

import { createContext, useContext, useEffect, useState } from "react";
import { devices, health, models } from "../api/calls";
import type { Device, Health, Model } from "../api/types";
import { report, useConnection } from "./connection";

export interface Catalogue {
  readonly health: Health | null;
  readonly devices: readonly Device[];
  readonly models: readonly Model[];
}

const NOTHING: Catalogue = { health: null, devices: [], models: [] };

export const CatalogueContext = createContext<Catalogue>(NOTHING);

export function useCatalogue(): Catalogue {
  return useContext(CatalogueContext);
}

export function useLoadedCatalogue(): Catalogue {
  const [catalogue, setCatalogue] = useState(NOTHING);
  const connection = useConnection();
  useEffect(() => {
    if (connection !== "online") return undefined;
    const abort = new AbortController();
    const keep = <K extends keyof Catalogue>(key: K) => (value: Catalogue[K]) => {
      report(null);
      if (!abort.signal.aborted) setCatalogue((before) => ({ ...before, [key]: value }));
    };
    const fail = (error: unknown) => report(error);
    health(abort.signal).then(keep("health"), fail);
    devices(abort.signal).then(keep("devices"), fail);
    models(abort.signal).then(keep("models"), fail);
    return () => abort.abort();
  }, [connection]);
  return catalogue;
}
